/* System calls by an instruction of the program's own: no library stands before these, as it does before
 * libc's functions and syscall(2). */
#ifndef UNSEEN_H
#define UNSEEN_H

#include <errno.h>
#include <sys/syscall.h>

static long unseen_words(const long *words)
{
#if defined(__x86_64__)
    long result = words[0];
    register long d __asm__("r10") = words[4];
    register long e __asm__("r8") = words[5];
    register long f __asm__("r9") = words[6];
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"(words[1]), "S"(words[2]), "d"(words[3]), "r"(d), "r"(e), "r"(f)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long number __asm__("x8") = words[0];
    register long result __asm__("x0") = words[1];
    register long b __asm__("x1") = words[2];
    register long c __asm__("x2") = words[3];
    register long d __asm__("x3") = words[4];
    register long e __asm__("x4") = words[5];
    register long f __asm__("x5") = words[6];
    __asm__ volatile("svc 0"
                     : "+r"(result)
                     : "r"(number), "r"(b), "r"(c), "r"(d), "r"(e), "r"(f)
                     : "memory");
#endif
    if (result < 0 && result >= -4095) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

/* The number and up to six words. */
#define UNSEEN(...) unseen_words((const long[7]){UNSEEN_LIST(__VA_ARGS__, 0, 0, 0, 0, 0, 0)})
#define UNSEEN_LIST(n, a, b, c, d, e, f, ...)                                                                \
    (long)(n), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f)

#endif
