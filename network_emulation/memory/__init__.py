"""Memory of hosts: a worker that is too big for its host ends the run, as it would end on such a
device.

The workers' memory is looked at twice a second, as root or not. A memory cgroup would not do: it
charges a page to whoever touched it first, and most of a worker's are inherited from the process
that imported PyTorch for all of them. What counts is what a kernel could not take back: anonymous,
shared and swapped memory, not the mapped files of libraries and samples (proc_pid_status(5)). What
was held between two looks is told by the kernel's mark of the highest (`VmHWM`), taken down at each
look. It counts mapped files too, so that a file mapped and let go between two looks counts: such a
peak ends no run, and is told of after it.
"""
