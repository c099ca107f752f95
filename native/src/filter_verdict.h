/* What a thread's seccomp filters would answer to a system call: their classic BPF, run here over a made-up call. */
#ifndef TCLONE_FILTER_VERDICT_H
#define TCLONE_FILTER_VERDICT_H

#include <linux/seccomp.h>
#include <stdbool.h>
#include <stdint.h>

struct filter;                  /* parts/parts.h */

/*
 * SECCOMP_RET_* without its data, of the filters from `first` up to but without `end` (NULL = all) together: the kernel takes the strictest. ALLOW if
 * there is none, KILL_PROCESS for a program that the kernel would not have taken.
 */
uint32_t filter_verdict(const struct filter *first, const struct filter *end, const struct seccomp_data *call);
/* A 64-bit call without arguments. */
struct seccomp_data filter_call(int number);
/* Does the kernel make the call? */
bool filter_lets_through(uint32_t verdict);

#endif
