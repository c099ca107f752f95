#include "vma_reader.h"
#include "error.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/btf.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BTF_PATH "/sys/kernel/btf/vmlinux"
#define MAX_ANONYMOUS_NESTING 8

/* ---- the kernel's types ---- */

/* Types are stored one after the other and differ in size; where every 64th stands is remembered. */
#define MARK_EVERY 64

struct types {
    const char *image;
    size_t size;
    bool mapped;
    const char *at, *end;           /* the types, by id from 1 */
    const char *strings;
    uint32_t strings_size;
    const char **marks;
    uint32_t count;                 /* of types passed so far */
};

/* What follows a struct btf_type, by its kind; newer kinds end the reading. */
static bool tail_size(const struct btf_type *type, size_t *size)
{
    size_t members = BTF_INFO_VLEN(type->info);
    switch (BTF_INFO_KIND(type->info)) {
    case BTF_KIND_INT: case BTF_KIND_VAR: case BTF_KIND_DECL_TAG: *size = 4; return true;
    case BTF_KIND_ARRAY: *size = sizeof(struct btf_array); return true;
    case BTF_KIND_STRUCT: case BTF_KIND_UNION: *size = members * sizeof(struct btf_member); return true;
    case BTF_KIND_ENUM: case BTF_KIND_FUNC_PROTO: *size = members * 8; return true;
    case BTF_KIND_ENUM64: case BTF_KIND_DATASEC: *size = members * 12; return true;
    case BTF_KIND_PTR: case BTF_KIND_FWD: case BTF_KIND_TYPEDEF: case BTF_KIND_VOLATILE: case BTF_KIND_CONST: case BTF_KIND_RESTRICT:
    case BTF_KIND_FUNC: case BTF_KIND_FLOAT: case BTF_KIND_TYPE_TAG: *size = 0; return true;
    default: return false;
    }
}

static int read_image(struct types *types, int fd)
{
    char *image = malloc(types->size);
    types->image = image;
    for (size_t used = 0; image && used < types->size;) {
        ssize_t got = read(fd, image + used, types->size - used);
        if (got <= 0)
            return -1;
        used += (size_t)got;
    }
    return image ? 0 : -1;
}

/* Mapping it (Linux 6.16) saves a copy of 5 MB into new pages, 6 ms of CPU time in a new process. */
static int load_image(struct types *types)
{
    AUTO_CLOSE int fd = open(BTF_PATH, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size <= 0)
        return -1;
    types->size = (size_t)st.st_size;
    void *image = mmap(NULL, types->size, PROT_READ, MAP_PRIVATE, fd, 0);
    types->mapped = image != MAP_FAILED;
    if (!types->mapped)
        return read_image(types, fd);
    types->image = image;
    return 0;
}

static void unload_image(struct types *types)
{
    free(types->marks);
    if (types->mapped)
        munmap((void *)types->image, types->size);
    else
        free((void *)types->image);
}

static int open_types(struct types *types)
{
    if (load_image(types) < 0)
        return -1;
    const struct btf_header *header = (const void *)types->image;
    if (types->size < sizeof *header || header->magic != BTF_MAGIC
        || (uint64_t)header->hdr_len + header->type_off + header->type_len > types->size
        || (uint64_t)header->hdr_len + header->str_off + header->str_len > types->size)
        return -1;
    types->strings = types->image + header->hdr_len + header->str_off;
    types->strings_size = header->str_len;
    types->at = types->image + header->hdr_len + header->type_off;
    types->end = types->at + header->type_len;
    types->marks = malloc((header->type_len / sizeof(struct btf_type) / MARK_EVERY + 2) * sizeof *types->marks);
    if (!types->marks || types->strings_size == 0 || types->strings[types->strings_size - 1] != 0)
        return -1;
    return 0;
}

/* The type at `*at`, which moves behind it; NULL at the end, or where something is not understood. */
static const struct btf_type *next_type(const struct types *types, const char **at)
{
    const struct btf_type *type = (const void *)*at;
    size_t tail;
    if (*at + sizeof *type > types->end || !tail_size(type, &tail) || *at + sizeof *type + tail > types->end)
        return NULL;
    *at += sizeof *type + tail;
    return type;
}

/* Go on by one type, whose id is then types->count. */
static const struct btf_type *pass_type(struct types *types)
{
    const char *here = types->at;
    const struct btf_type *type = next_type(types, &types->at);
    if (!type)
        return NULL;
    types->count++;
    if (types->count % MARK_EVERY == 1)
        types->marks[(types->count - 1) / MARK_EVERY] = here;
    return type;
}

static bool is_named(const struct types *types, uint32_t name_offset, const char *name)
{
    return name_offset < types->strings_size && strcmp(types->strings + name_offset, name) == 0;
}

struct wanted {
    uint32_t kind;
    const char *name;
    uint32_t id;                    /* 0: not found */
};

/* One walk until all are found: 64 000 types of Linux 6.18, half a millisecond. */
static bool find_types(struct types *types, struct wanted *wanted, int count)
{
    int missing = count;
    while (missing) {
        const struct btf_type *type = pass_type(types);
        if (!type)
            return false;
        for (int i = 0; i < count; i++)
            if (!wanted[i].id && BTF_INFO_KIND(type->info) == wanted[i].kind && is_named(types, type->name_off, wanted[i].name)) {
                wanted[i].id = types->count;
                missing--;
            }
    }
    return true;
}

static const struct btf_type *type_at(struct types *types, uint32_t id)
{
    while (types->count < id)
        if (!pass_type(types))
            return NULL;
    if (id == 0)
        return NULL;
    const char *at = types->marks[(id - 1) / MARK_EVERY];
    const struct btf_type *type = next_type(types, &at);
    for (uint32_t left = (id - 1) % MARK_EVERY; left > 0; left--)
        type = next_type(types, &at);
    return type;
}

/* The byte offset of a member, also one of an anonymous struct or union in it; -1 if there is none. */
static int member_offset(struct types *types, uint32_t id, const char *name, int depth)
{
    const struct btf_type *type = depth > MAX_ANONYMOUS_NESTING ? NULL : type_at(types, id);
    uint32_t kind = type ? BTF_INFO_KIND(type->info) : BTF_KIND_UNKN;
    if (kind != BTF_KIND_STRUCT && kind != BTF_KIND_UNION)
        return -1;
    const struct btf_member *members = (const void *)(type + 1);
    for (uint32_t i = 0; i < BTF_INFO_VLEN(type->info); i++) {
        uint32_t bits = BTF_INFO_KFLAG(type->info) ? BTF_MEMBER_BIT_OFFSET(members[i].offset) : members[i].offset;
        if (is_named(types, members[i].name_off, name))
            return (int)(bits / 8);
        int inner = members[i].name_off == 0 ? member_offset(types, members[i].type, name, depth + 1) : -1;
        if (inner >= 0)
            return (int)(bits / 8) + inner;
    }
    return -1;
}

struct layout {
    uint32_t iterator;          /* id of the function that programs attach to */
    int start, end, flags, mm, default_flags;
};

static int read_layout(struct layout *layout)
{
    struct types types = { 0 };
    struct wanted wanted[] = { { BTF_KIND_STRUCT, "vm_area_struct", 0 }, { BTF_KIND_STRUCT, "mm_struct", 0 }, { BTF_KIND_FUNC, "bpf_iter_task_vma", 0 } };
    int status = -1;
    if (open_types(&types) == 0 && find_types(&types, wanted, 3)) {
        uint32_t vma = wanted[0].id, mm = wanted[1].id;
        *layout = (struct layout){
            .iterator = wanted[2].id,
            .start = member_offset(&types, vma, "vm_start", 0),
            .end = member_offset(&types, vma, "vm_end", 0),
            .flags = member_offset(&types, vma, "vm_flags", 0),
            .mm = member_offset(&types, vma, "vm_mm", 0),
            .default_flags = member_offset(&types, mm, "def_flags", 0),
        };
        if (layout->start >= 0 && layout->end >= 0 && layout->flags >= 0 && layout->mm >= 0 && layout->default_flags >= 0)
            status = 0;
    }
    unload_image(&types);
    return status;
}

/* ---- the program ---- */

static int bpf(enum bpf_cmd command, union bpf_attr *attributes)
{
    return (int)syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

#define LOAD(to, from, offset) { .code = BPF_LDX | BPF_MEM | BPF_DW, .dst_reg = (to), .src_reg = (from), .off = (int16_t)(offset) }
#define STORE(offset, from) { .code = BPF_STX | BPF_MEM | BPF_DW, .dst_reg = BPF_REG_10, .src_reg = (from), .off = (int16_t)(offset) }
#define SET(to, value) { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = (to), .imm = (value) }
#define RECORD ((int)sizeof(struct vma_record))

/* context: { meta { seq … }, task, vma }; vma is NULL on the last call. Each call writes one struct vma_record from its stack. */
static int load_program(const struct layout *layout)
{
    const struct bpf_insn program[] = {
        LOAD(BPF_REG_2, BPF_REG_1, 16),
        { .code = BPF_JMP | BPF_JEQ | BPF_K, .dst_reg = BPF_REG_2, .off = 15 },
        LOAD(BPF_REG_3, BPF_REG_2, layout->start), STORE(-RECORD, BPF_REG_3),
        LOAD(BPF_REG_3, BPF_REG_2, layout->end), STORE(-RECORD + 8, BPF_REG_3),
        LOAD(BPF_REG_3, BPF_REG_2, layout->flags), STORE(-RECORD + 16, BPF_REG_3),
        LOAD(BPF_REG_3, BPF_REG_2, layout->mm), LOAD(BPF_REG_3, BPF_REG_3, layout->default_flags), STORE(-RECORD + 24, BPF_REG_3),
        LOAD(BPF_REG_1, BPF_REG_1, 0), LOAD(BPF_REG_1, BPF_REG_1, 0),
        { .code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = BPF_REG_2, .src_reg = BPF_REG_10 },
        { .code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = BPF_REG_2, .imm = -RECORD },
        SET(BPF_REG_3, RECORD),
        { .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_seq_write },
        SET(BPF_REG_0, 0),
        { .code = BPF_JMP | BPF_EXIT },
    };
    union bpf_attr attributes = {
        .prog_type = BPF_PROG_TYPE_TRACING, .expected_attach_type = BPF_TRACE_ITER, .attach_btf_id = layout->iterator,
        .insns = (uint64_t)program, .insn_cnt = sizeof program / sizeof *program, .license = (uint64_t)"Dual BSD/GPL", .prog_name = "tclone_vmas",
    };
    return bpf(BPF_PROG_LOAD, &attributes);
}

int vma_reader_open(void)
{
    struct layout layout;
    return read_layout(&layout) < 0 ? -1 : load_program(&layout);
}

static int open_iterator(int reader, pid_t tid)
{
    union bpf_iter_link_info which = { .task = { .tid = (uint32_t)tid } };
    union bpf_attr link = { .link_create = { .prog_fd = (uint32_t)reader, .attach_type = BPF_TRACE_ITER, .iter_info = (uint64_t)&which,
                                             .iter_info_len = sizeof which } };
    AUTO_CLOSE int fd = bpf(BPF_LINK_CREATE, &link);
    if (fd < 0)
        return -1;
    union bpf_attr iterator = { .iter_create = { .link_fd = (uint32_t)fd } };
    return bpf(BPF_ITER_CREATE, &iterator);
}

/*
 * When the iterator has told all, and more than its buffer of 32 KiB held, it tells the last buffer's mappings again, and again (seen in Linux
 * 6.18: the place to go on at is remembered only where it was interrupted). So the list ends where addresses do not rise any more.
 */
static bool begins_again(const char *block, size_t used, size_t got)
{
    const struct vma_record *fresh = (const void *)(block + used);
    return used > 0 && got >= sizeof *fresh && fresh->start < fresh[-1].end;
}

ssize_t vma_reader_read(int reader, pid_t tid, struct vma_record **records)
{
    AUTO_CLOSE int fd = open_iterator(reader, tid);
    if (fd < 0)
        return -1;
    size_t size = 512 * sizeof **records, used = 0;
    char *block = must_alloc(size);
    for (ssize_t got; (got = read(fd, block + used, size - used)) != 0;) {
        if (got < 0 && errno != EAGAIN && errno != EINTR) {
            free(block);
            return -1;
        }
        if (got > 0 && begins_again(block, used, (size_t)got))
            break;
        used += got > 0 ? (size_t)got : 0;
        if (used == size)
            block = must_grow(block, size *= 2);
    }
    *records = (struct vma_record *)block;
    return (ssize_t)(used / sizeof **records);
}
