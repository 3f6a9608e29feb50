// Sets the wall clock of a rank, as somebody sets that of a host: by as many seconds as stand in
// the file that TEST_CLOCK and RANK name.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec* now) {
    static int (*real)(clockid_t, struct timespec*);
    if (!real)
        real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
    const int result = real(clock, now);
    const char *name = getenv("TEST_CLOCK"), *rank = getenv("RANK");
    if (clock == CLOCK_REALTIME && name && rank) {
        char text[512];
        snprintf(text, sizeof text, "%s.%s", name, rank);
        const int file = open(text, O_RDONLY | O_CLOEXEC);
        const ssize_t size = file < 0 ? 0 : read(file, text, sizeof text - 1);
        if (size > 0) {
            text[size] = 0;
            now->tv_sec += strtol(text, NULL, 10);
        }
        if (file >= 0)
            close(file);
    }
    return result;
}
