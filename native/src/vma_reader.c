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

struct types {
    char *image;
    size_t size;
    const char *strings;
    uint32_t strings_size;
    const struct btf_type **list;   /* by id, from 1 */
    uint32_t count;
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

static int load_image(struct types *types)
{
    AUTO_CLOSE int fd = open(BTF_PATH, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size <= 0)
        return -1;
    types->image = malloc((size_t)st.st_size);
    for (ssize_t got; types->image && types->size < (size_t)st.st_size; types->size += (size_t)got)
        if ((got = read(fd, types->image + types->size, (size_t)st.st_size - types->size)) <= 0)
            return -1;
    return types->image ? 0 : -1;
}

static int index_types(struct types *types)
{
    const struct btf_header *header = (const void *)types->image;
    if (types->size < sizeof *header || header->magic != BTF_MAGIC
        || (uint64_t)header->hdr_len + header->type_off + header->type_len > types->size
        || (uint64_t)header->hdr_len + header->str_off + header->str_len > types->size)
        return -1;
    types->strings = types->image + header->hdr_len + header->str_off;
    types->strings_size = header->str_len;
    const char *at = types->image + header->hdr_len + header->type_off, *end = at + header->type_len;
    types->list = malloc((header->type_len / sizeof(struct btf_type) + 2) * sizeof *types->list);
    if (!types->list)
        return -1;
    size_t tail;
    for (types->count = 1; at + sizeof(struct btf_type) <= end; types->count++) {
        const struct btf_type *type = types->list[types->count] = (const void *)at;
        if (!tail_size(type, &tail) || at + sizeof *type + tail > end)
            return -1;
        at += sizeof *type + tail;
    }
    return 0;
}

/* Each text is there once, so types can be found by comparing its offset. Returns 0 (the empty text) if it is not there. */
static uint32_t string_offset(const struct types *types, const char *text)
{
    size_t length = strlen(text) + 1;
    const char *at = types->strings, *end = types->strings + types->strings_size;
    while ((at = memmem(at, (size_t)(end - at), text, length))) {
        if (at > types->strings && at[-1] == 0)
            return (uint32_t)(at - types->strings);
        at++;
    }
    return 0;
}

static uint32_t find_type(const struct types *types, uint32_t kind, const char *name)
{
    uint32_t offset = string_offset(types, name);
    for (uint32_t id = 1; offset && id < types->count; id++)
        if (types->list[id]->name_off == offset && BTF_INFO_KIND(types->list[id]->info) == kind)
            return id;
    return 0;
}

/* The byte offset of a member, also one of an anonymous struct or union in it; -1 if there is none. */
static int member_offset(const struct types *types, uint32_t id, uint32_t name, int depth)
{
    if (id == 0 || id >= types->count || depth > MAX_ANONYMOUS_NESTING)
        return -1;
    const struct btf_type *type = types->list[id];
    uint32_t kind = BTF_INFO_KIND(type->info);
    if (kind != BTF_KIND_STRUCT && kind != BTF_KIND_UNION)
        return -1;
    const struct btf_member *members = (const void *)(type + 1);
    for (uint32_t i = 0; i < BTF_INFO_VLEN(type->info); i++) {
        uint32_t bits = BTF_INFO_KFLAG(type->info) ? BTF_MEMBER_BIT_OFFSET(members[i].offset) : members[i].offset;
        if (members[i].name_off == name)
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
    int status = load_image(&types);
    if (status == 0)
        status = index_types(&types);
    if (status == 0) {
        uint32_t vma = find_type(&types, BTF_KIND_STRUCT, "vm_area_struct"), mm = find_type(&types, BTF_KIND_STRUCT, "mm_struct");
        *layout = (struct layout){
            .iterator = find_type(&types, BTF_KIND_FUNC, "bpf_iter_task_vma"),
            .start = member_offset(&types, vma, string_offset(&types, "vm_start"), 0),
            .end = member_offset(&types, vma, string_offset(&types, "vm_end"), 0),
            .flags = member_offset(&types, vma, string_offset(&types, "vm_flags"), 0),
            .mm = member_offset(&types, vma, string_offset(&types, "vm_mm"), 0),
            .default_flags = member_offset(&types, mm, string_offset(&types, "def_flags"), 0),
        };
        if (!layout->iterator || layout->start < 0 || layout->end < 0 || layout->flags < 0 || layout->mm < 0 || layout->default_flags < 0)
            status = -1;
    }
    free(types.list);
    free(types.image);
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
