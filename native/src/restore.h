/* What the files of tclone-restore share. */
#ifndef TCLONE_RESTORE_H
#define TCLONE_RESTORE_H

#include "arena.h"

extern struct arena_control *control;
extern struct tree_node *nodes;
extern int own_socket;          /* to livefork */
extern int host_proc;           /* the host's /proc, O_PATH */

void __attribute__((noreturn, format(printf, 2, 3))) give_up(const struct op *op, const char *format, ...);
/* A result that is negative ends the branch: "cannot WHAT". Returns it otherwise. */
long must(long result, const char *what);
/* Wait until a child of ours, which makes something, has ended; it must have ended well. */
void await_maker(long child, const char *what);
void wake(uint32_t *word);
void raise_word(uint32_t *word);
void await_word(uint32_t *word, uint32_t wanted);
void run_batch(uint64_t address);
/* Become these ids (real, effective, saved; -1 = leave) but keep every capability. */
void become(const int32_t uid[3], const int32_t gid[3]);

/* ---- restore_nest.c ---- */

/* pid 1, before anything else: every namespace except pid namespaces is made, and open at its slot. */
void nest_begin(void);
/* Fork a node that has a nest; in the child run(index), which does not return. */
void nest_fork(int index, void (*run)(int));
/* First thing in such a node: into the namespaces that it can enter now. */
void nest_enter(int index);
/* Once its children are forked. */
void nest_finish(int index);
/* What held a process group until everybody is in it, if `first` is the first process of a pid namespace. */
void reap_group_holders(const struct tree_node *first);
/* Every clone is done: from here on processes go by tickets. */
void nest_tickets(void);

#endif
