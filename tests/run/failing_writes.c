/* Preloaded library in which the n-th change of a file below a folder fails.
 *
 * FAILING_FOLDER   folder whose files are meant
 * FAILING_COUNTER  file of 8 bytes that all processes map: number of changes so far
 * FAILING_AT       number of the change that fails, from 1; 0 lets all succeed
 * FAILING_ERRNO    its error
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static _Atomic long *counter;
static const char *folder;
static long fail_at;
static int fail_errno;

__attribute__((constructor)) static void set_up(void) {
    const char *file = getenv("FAILING_COUNTER");
    folder = getenv("FAILING_FOLDER");
    if (!file || !folder) return;
    int descriptor = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return;
    void *memory = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (memory == MAP_FAILED) return;
    fail_at = atol(getenv("FAILING_AT"));
    fail_errno = atoi(getenv("FAILING_ERRNO"));
    counter = memory;
}

static int fails(void) {
    if (atomic_fetch_add(counter, 1) + 1 != fail_at) return 0;
    errno = fail_errno;
    return 1;
}

static int is_below(const char *path) {
    return counter && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_meant(int descriptor) {
    char link[64], path[PATH_MAX];
    if (!counter || descriptor < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    int before = errno;
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length <= 0) return 0;
    path[length] = 0;
    return is_below(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void *data, size_t size) {
    if (is_meant(descriptor) && fails()) return -1;
    return REAL(write)(descriptor, data, size);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    if (is_meant(descriptor) && fails()) return -1;
    return REAL(writev)(descriptor, parts, count);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    if (is_meant(descriptor) && fails()) return -1;
    return REAL(pwrite64)(descriptor, data, size, offset);
}

int fsync(int descriptor) {
    if (is_meant(descriptor) && fails()) return -1;
    return REAL(fsync)(descriptor);
}

int ftruncate64(int descriptor, off64_t size) {
    if (is_meant(descriptor) && fails()) return -1;
    return REAL(ftruncate64)(descriptor, size);
}

int posix_fallocate64(int descriptor, off64_t offset, off64_t size) {
    if (is_meant(descriptor) && fails()) return fail_errno;
    return REAL(posix_fallocate64)(descriptor, offset, size);
}

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if ((flags & O_CREAT) && is_below(path) && fails()) return -1;
    return REAL(open64)(path, flags, mode);
}

int openat64(int parent, const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if ((flags & O_CREAT) && (is_below(path) || is_meant(parent)) && fails()) return -1;
    return REAL(openat64)(parent, path, flags, mode);
}

int mkdir(const char *path, mode_t mode) {
    if (is_below(path) && fails()) return -1;
    return REAL(mkdir)(path, mode);
}

int rename(const char *from, const char *to) {
    if (is_below(to) && fails()) return -1;
    return REAL(rename)(from, to);
}

int renameat(int from, const char *old, int to, const char *new) {
    if ((is_below(new) || is_meant(to)) && fails()) return -1;
    return REAL(renameat)(from, old, to, new);
}
