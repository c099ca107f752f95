/*
 * Questions to which "no" is an answer like any other: has the socket this option, does a name lead there. Where the kernel could not tell, because memory
 * or descriptors were missing, the answer is not "no": a branch made on it would differ from its source, and nobody would be told. Such a doubt is noted
 * where it comes up, and fails the fork once the source has been read.
 */
#ifndef TCLONE_DOUBT_H
#define TCLONE_DOUBT_H

#include <errno.h>
#include <stdbool.h>

#include "error.h"

/* The errors by which the kernel says no; HAS_NO_SUCH_NAME of a path. */
#define ANSWERS(...) ((const unsigned char[]){ __VA_ARGS__, 0 })
#define HAS_NO_SUCH_NAME ANSWERS(ENOENT, ENOTDIR, ELOOP, EACCES, ENAMETOOLONG, ESTALE, EXDEV, EINVAL, ENODEV, ENXIO)

/* Note errno, unless it is one of the answers. Returns whether it was noted. The first doubt is the one that is told; any thread may call this. */
bool doubt(const unsigned char *answers, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for an error that tells why a file of /proc could not be read: that it is not there is an answer. */
bool doubt_error(const struct error *err);
/* Fails with the first doubt, if there was any. */
int doubts_check(struct error *err);

/* A call that a rename anywhere on the machine may answer with EAGAIN (openat2 on its way through ".."). */
#define AGAIN(call) \
    ({ \
        long result_ = -1; \
        errno = EAGAIN; \
        for (int tries_ = 0; tries_ < 100 && result_ < 0 && errno == EAGAIN; tries_++) \
            result_ = (long)(call); \
        result_; \
    })

/* A call by which the source gets back what a look at it took away. It has no reason to fail that would last. */
#define INSIST(call) \
    ({ \
        long result_ = -1; \
        for (int tries_ = 0; tries_ < 5 && result_ < 0; tries_++) \
            result_ = (long)(call); \
        result_; \
    })

#endif
