/* A disk that takes its time, for `slow_disk.py`: preloaded into the processes of a cluster, it lets calls that write to
   regular files below SLOW_DISK_FOLDER sleep for as many milliseconds as the first four bytes of SLOW_DISK_CONTROL say.
   The calls then do what they always do. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const volatile uint32_t *delay_ms;
static const char *folder;

__attribute__((constructor)) static void begin(void) {
    const char *control = getenv("SLOW_DISK_CONTROL");
    folder = getenv("SLOW_DISK_FOLDER");
    if (!control || !folder) return;
    int fd = open(control, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *memory = mmap(NULL, sizeof(uint32_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED) delay_ms = memory;
}

static void take_time(int fd) {
    if (!delay_ms || !*delay_ms) return;
    struct stat status;
    if (fstat(fd, &status) || !S_ISREG(status.st_mode)) return;
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder))) return;
    uint32_t ms = *delay_ms;
    struct timespec left = {ms / 1000, (ms % 1000) * 1000000L};
    while (nanosleep(&left, &left)) {
    }
}

#define SLOW(result, name, parameters, arguments)                          \
    result name parameters {                                               \
        static result(*real) parameters;                                   \
        if (!real) real = (result(*) parameters)dlsym(RTLD_NEXT, #name);   \
        take_time(fd);                                                     \
        return real arguments;                                             \
    }

SLOW(ssize_t, write, (int fd, const void *bytes, size_t count), (fd, bytes, count))
SLOW(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
SLOW(ssize_t, pwrite64, (int fd, const void *bytes, size_t count, off64_t at), (fd, bytes, count, at))
SLOW(int, fsync, (int fd), (fd))
SLOW(int, fdatasync, (int fd), (fd))
SLOW(int, ftruncate64, (int fd, off64_t size), (fd, size))
