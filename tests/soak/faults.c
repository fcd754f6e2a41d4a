// Injects faults of system calls other than file system calls into a running program, by LD_PRELOAD. The environment
// variable FAULTS names a file of 16 64-bit integers, which the test maps or writes:
//
//   0 offset of the wall clock in nanoseconds            8 number of reads with this offset
//   1 offset of the monotonic clock in nanoseconds       9 number of reads with this offset
//   2 error number for starting a thread                10 number of failures
//   3 error number for writing to standard error        11 number of failures
//   4 error number for accepting a connection           12 number of failures
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t none[16];
static _Atomic int64_t *control = none;

__attribute__((constructor)) static void map_controls(void) {
    const char *name = getenv("FAULTS");
    int file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) control = mapped;
}

static int64_t fault_value(int which) {
    int64_t value = atomic_load_explicit(&control[which], memory_order_relaxed);
    if (value) atomic_fetch_add_explicit(&control[which + 8], 1, memory_order_relaxed);
    return value;
}

#define REAL(name) \
    static typeof(&name) real; \
    if (!real) real = (typeof(&name))dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(clock, now);
    int64_t off = result ? 0 : clock == CLOCK_REALTIME ? fault_value(0) : clock == CLOCK_MONOTONIC ? fault_value(1) : 0;
    if (off) {
        int64_t nanoseconds = now->tv_nsec + off % 1000000000;
        now->tv_sec += off / 1000000000 + (nanoseconds >= 1000000000) - (nanoseconds < 0);
        now->tv_nsec = nanoseconds + (nanoseconds < 0 ? 1000000000 : nanoseconds >= 1000000000 ? -1000000000 : 0);
    }
    return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*begin)(void *), void *argument) {
    REAL(pthread_create);
    int64_t error = fault_value(2);
    return error ? (int)error : real(thread, attributes, begin, argument);
}

ssize_t write(int file, const void *bytes, size_t size) {
    REAL(write);
    int64_t error = file == STDERR_FILENO ? fault_value(3) : 0;
    return error ? (errno = (int)error, -1) : real(file, bytes, size);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev);
    int64_t error = file == STDERR_FILENO ? fault_value(3) : 0;
    return error ? (errno = (int)error, -1) : real(file, parts, count);
}

int accept4(int listener, struct sockaddr *restrict address, socklen_t *restrict size, int flags) {
    REAL(accept4);
    int64_t error = fault_value(4);
    return error ? (errno = (int)error, -1) : real(listener, address, size, flags);
}
