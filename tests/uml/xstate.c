/* Lets Debian's user-mode kernel 6.1 run on processors whose registers are larger, or smaller, than its build machine's.

   It restores the floating-point registers of its processes with PTRACE_SETREGSET and a buffer of the size that was known when it
   was built (2696 bytes). The host's kernel takes nothing but its own size (with AMX 11008, with AVX2 alone 832) and says EFAULT,
   which ends the user-mode kernel in a panic. Preloaded, this brings the buffer to the host's size: what the user-mode kernel does not
   know of stays as it was. */

#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

static char registers[1 << 16] __attribute__((aligned(64)));

static long set_registers(pid_t pid, void *kind, const struct iovec *given)
{
    struct iovec whole = {registers, sizeof registers};
    if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, kind, &whole) < 0)
        return -1;
    memcpy(registers, given->iov_base, given->iov_len < whole.iov_len ? given->iov_len : whole.iov_len);
    return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, kind, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    pid_t pid = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    if (request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE)
        return set_registers(pid, address, data);
    if (request != PTRACE_PEEKTEXT && request != PTRACE_PEEKDATA && request != PTRACE_PEEKUSER)
        return syscall(SYS_ptrace, request, pid, address, data);
    long word; /* the system call stores what the library function returns */
    if (syscall(SYS_ptrace, request, pid, address, &word) < 0)
        return -1;
    errno = 0;
    return word;
}
