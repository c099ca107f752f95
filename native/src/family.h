/*
 * Memory that relatives share. After a fork parent and child use the same pages until one of them writes; a browser's zygote or a prefork server
 * depends on it. A branch's processes would each get copies of their own, so:
 *
 *   a family            is a set of processes that come from one exec by forks alone; its members share pages at equal addresses
 *   its holder          is the process of the branch from which all members are forked: often the eldest, else the nearest common ancestor
 *   before it forks     the holder maps the family's areas and livefork fills them with the pages that most members share
 *   each member         inherits them, keeps the mappings that are its own, drops the pages that it has not, and is filled with what differs
 */
#ifndef TCLONE_FAMILY_H
#define TCLONE_FAMILY_H

#include "arena.h"
#include "branch.h"
#include "memory.h"
#include "plan.h"

/* Pages that the holder gets; `donor` is a member that has them. */
struct held_run {
    uint64_t start, end;
    int donor;                  /* index of the process */
};

/* A mapping of the holder, as large as all members' mappings of it together. */
struct area {
    uint64_t start, end;
    const struct vma *model;    /* kind, file and reservation are this one's */
};

struct family {
    struct process **members;
    int member_count;
    struct held_run *runs;
    int run_count;
    struct area *areas;
    int area_count;
    uint64_t saved;             /* bytes that need not be copied, over all members */
    int holder;                 /* tree node; -1 = the family is not held together */
    uint64_t words;             /* struct arena_family */
    bool embedded;              /* small: its pages lie in the arena, the holder copies them by itself */
};

struct families {
    struct family *list;
    int count;
};

/* Find families and what they share, from the page tables; after memory_scan_pages. Sets world->families. */
void families_find(struct world *world);
/* Where the restorers of the branches have mappings of their own: the areas must not lie there. */
int families_avoid(struct world *world, pid_t restorer, struct error *err);
/* Choose holders in the fork tree and what each member keeps; from now on runs of memory maps hold only what is left to copy. */
void families_plan(struct world *world, const struct tree_node *nodes, int node_count);
/* The batches in which holders map their areas, and in which those that are no members unmap them again; what small families share. */
int families_emit(struct plan *plan, struct tree_node *nodes, struct error *err);
/*
 * In branches under construction: fill the holders, each as soon as it has mapped its areas, in the order in which they are forked. Returns the
 * bytes copied into one branch, or -1 when the source cannot be read.
 */
int64_t families_fill(struct world *world, const struct plan *plan, struct branch *branches, int branch_count, struct error *err);

#endif
