#include "vma_reader.h"
#include "error.h"
#include "kernel_types.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct layout {
    uint32_t iterator;          /* id of the function that programs attach to */
    int start, end, flags, mm, default_flags;
};

static int read_layout(struct layout *layout)
{
    struct kernel_types types = { 0 };
    struct wanted_type wanted[] = { { BTF_KIND_STRUCT, "vm_area_struct", 0 }, { BTF_KIND_STRUCT, "mm_struct", 0 }, { BTF_KIND_FUNC, "bpf_iter_task_vma", 0 } };
    int status = -1;
    if (kernel_types_open(&types) == 0 && kernel_types_find(&types, wanted, 3)) {
        uint32_t vma = wanted[0].id, mm = wanted[1].id;
        *layout = (struct layout){
            .iterator = wanted[2].id,
            .start = kernel_types_member(&types, vma, "vm_start", 0),
            .end = kernel_types_member(&types, vma, "vm_end", 0),
            .flags = kernel_types_member(&types, vma, "vm_flags", 0),
            .mm = kernel_types_member(&types, vma, "vm_mm", 0),
            .default_flags = kernel_types_member(&types, mm, "def_flags", 0),
        };
        if (layout->start >= 0 && layout->end >= 0 && layout->flags >= 0 && layout->mm >= 0 && layout->default_flags >= 0)
            status = 0;
    }
    kernel_types_close(&types);
    return status;
}

/* ---- the program ---- */

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
    return kernel_bpf(BPF_PROG_LOAD, &attributes);
}

int vma_reader_open(void)
{
    struct layout layout;
    return read_layout(&layout) < 0 ? -1 : load_program(&layout);
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
    AUTO_CLOSE int fd = kernel_bpf_iterate(reader, tid);
    if (fd < 0)
        return -1;
    size_t size = 512 * sizeof **records, used = 0;
    char *block = must_buffer(size);
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
