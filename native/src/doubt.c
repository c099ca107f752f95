#include "doubt.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static struct error first;
static int noted;       /* 1 = somebody writes `first`, 2 = it is written */

static void note(const struct error *err)
{
    int none = 0;
    if (!__atomic_compare_exchange_n(&noted, &none, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    first = *err;
    __atomic_store_n(&noted, 2, __ATOMIC_SEQ_CST);
}

bool doubt(const unsigned char *answers, const char *format, ...)
{
    int number = errno;
    for (; *answers; answers++)
        if (*answers == number)
            return false;
    char text[256];
    struct error err = { 0 };
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    errno = number;
    fail_errno(&err, "%s", text);
    if (number == ESRCH)
        err.code = "internal";  /* "gone" is said of the source as a whole */
    note(&err);
    return true;
}

bool doubt_error(const struct error *err)
{
    if (!err->code || strcmp(err->code, "gone") == 0)
        return false;
    note(err);
    return true;
}

int doubts_check(struct error *err)
{
    return __atomic_load_n(&noted, __ATOMIC_SEQ_CST) == 2 ? fail(err, first.code, "%s", first.message) : 0;
}
