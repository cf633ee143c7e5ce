"""Memory limits of hosts: a worker that is too big for its host ends the run.

It would end on such a device too. The memory of workers is read twice a second, with or without
root rights. A memory cgroup does not work: it charges a page to the process that touched it first,
and a worker inherits most of its pages from the process that imported PyTorch for all workers.

Only memory that a kernel could not take back counts: anonymous, shared and swapped memory, not the
mapped files of libraries and samples (proc_pid_status(5)). The kernel's high-water mark (`VmHWM`),
reset at each read, gives the peak between two reads. It counts mapped files too, so a file that
was mapped and unmapped between two reads counts. Therefore such a peak does not end the run; it is
reported afterwards.

`plan.py` computes and checks the limits; `watch.py` applies them. Both import the core and `model`
of this room.
"""
