/* Preloaded, it advances the system's clock by a minute while the file $WRONG_CLOCK/$CUCKOOD__CLUSTER__NODE exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*system_clock)(clockid_t, struct timespec *);
    if (!system_clock)
        system_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = system_clock(clock, time);
    const char *folder = getenv("WRONG_CLOCK"), *node = getenv("CUCKOOD__CLUSTER__NODE");
    char path[4096];
    if (clock == CLOCK_REALTIME && folder && node) {
        snprintf(path, sizeof path, "%s/%s", folder, node);
        if (access(path, F_OK) == 0)
            time->tv_sec += 60;
    }
    return result;
}
