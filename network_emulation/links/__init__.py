"""Links between hosts: the plan of all constraints and the two backends that apply it.

Read `plan_links.py` first (scenario files to a `LinkPlan`) and `backend.py` (the interface of both
backends). `netem/` uses the kernel's queues, `userspace/` a process of its own.
`end_host_shaping.py` places bottlenecks between real machines, `tcp_settings.py` sets the TCP of
hosts. Modules here import the core and the room's root modules.
"""
