/* Memory of huge pages (hugetlbfs): anonymous mappings with MAP_HUGETLB, memfds with MFD_HUGETLB and SysV segments with SHM_HUGETLB. The host's pool must have room for each copy. */
#ifndef TCLONE_HUGE_PAGES_H
#define TCLONE_HUGE_PAGES_H

#include "shared.h"

#define HUGE_PAGE_NAME "/anon_hugepage"

/* log2 of the page size of the file behind `fd` if it lies on hugetlbfs, else 0. */
int huge_page_shift(int fd);
/* The flag that asks mmap or memfd_create for pages of 1 << shift bytes. */
#define HUGE_SIZE_FLAG(shift) ((unsigned)(shift) << 26)
/* Copy what is there of an object; holes are kept. Returns bytes or -1. */
int64_t huge_pages_copy(const struct shared_object *object, int to, struct error *err);
/* Has the host as many free pages as `branches` copies of the workspace need? */
int huge_pages_check(const struct world *world, int branches, struct error *err);

#endif
