/* How long a cache line takes from core 0 to core 1 and back, in ns.
 *
 *     cc -O2 -pthread scripts/bench/kv_transfer/core_ping.c -o build/core_ping && build/core_ping
 *
 * Some 60 to 110 ns where the two cores share a last-level cache, several times that where they do not. A hypervisor moves
 * virtual cores at will, so run it beside whatever is being measured.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { ROUND_TRIPS = 100000, MAIN = 0, OTHER = 1 };

static _Atomic int turn __attribute__((aligned(64))) = MAIN;

static void pin(int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
}

static void *answer(void *unused) {
    pin(OTHER);
    for (int i = 0; i < ROUND_TRIPS; i++) {
        while (atomic_load(&turn) != OTHER) {}
        atomic_store(&turn, MAIN);
    }
    return unused;
}

int main(void) {
    struct timespec began, ended;
    pthread_t other;
    pin(MAIN);
    pthread_create(&other, NULL, answer, NULL);
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int i = 0; i < ROUND_TRIPS; i++) {
        atomic_store(&turn, OTHER);
        while (atomic_load(&turn) != MAIN) {}
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    pthread_join(other, NULL);
    double ns = (ended.tv_sec - began.tv_sec) * 1e9 + (ended.tv_nsec - began.tv_nsec);
    printf("%.0f ns\n", ns / ROUND_TRIPS);
}
