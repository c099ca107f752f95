#include "aio_reader.h"
#include "bpf_program.h"
#include "error.h"
#include "kernel_types.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERIFIER_BRANCHES 6000  /* of the 8192 that the kernel keeps in mind at most when it checks a program */
#define BRANCHES_A_CONTEXT 4
#define BRANCHES_A_CPU 3
#define MOST_CONTEXTS 64
#define RECORD ((int)sizeof(struct aio_record))

/* Fields of struct kioctx (fs/aio.c) and of what leads there. */
struct layout {
    uint32_t iterator;
    int mm, table, count, list;
    int id, cpu, events, available, completed, cancellable;
    int percpu_value;           /* in struct bpf_array: where the value of a map for each processor lies, counted from the processor's base */
};

static int read_layout(struct layout *layout)
{
    struct kernel_types types = { 0 };
    struct wanted_type wanted[] = {
        { BTF_KIND_FUNC, "bpf_iter_task", 0 }, { BTF_KIND_STRUCT, "task_struct", 0 }, { BTF_KIND_STRUCT, "mm_struct", 0 },
        { BTF_KIND_STRUCT, "kioctx_table", 0 }, { BTF_KIND_STRUCT, "kioctx", 0 }, { BTF_KIND_STRUCT, "bpf_array", 0 },
    };
    int status = -1;
    if (kernel_types_open(&types) == 0 && kernel_types_find(&types, wanted, sizeof wanted / sizeof *wanted)) {
        const struct { int *offset; uint32_t type; const char *member; } fields[] = {
            { &layout->mm, wanted[1].id, "mm" }, { &layout->table, wanted[2].id, "ioctx_table" }, { &layout->count, wanted[3].id, "nr" },
            { &layout->list, wanted[3].id, "table" }, { &layout->id, wanted[4].id, "user_id" }, { &layout->cpu, wanted[4].id, "cpu" },
            { &layout->events, wanted[4].id, "nr_events" }, { &layout->available, wanted[4].id, "reqs_available" },
            { &layout->completed, wanted[4].id, "completed_events" }, { &layout->cancellable, wanted[4].id, "active_reqs" },
            { &layout->percpu_value, wanted[5].id, "pptrs" },
        };
        layout->iterator = wanted[0].id;
        status = 0;
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            *fields[i].offset = kernel_types_member(&types, fields[i].type, fields[i].member, 0);
            status |= *fields[i].offset < 0 ? -1 : 0;
        }
    }
    kernel_types_close(&types);
    return status;
}

/* ---- the program ---- */

/* The stack, from its top: the record, then these. */
enum { COUNT = -RECORD - 8, CONTEXT = -RECORD - 16, KEY = -RECORD - 24, MAP = -RECORD - 32, VALUE = -RECORD - 40, CPU = -RECORD - 48, BASE = -RECORD - 56 };
#define FIELD(name) (-RECORD + (int)offsetof(struct aio_record, name))

/*
 * One processor (register 9): add what it holds in reserve. Where its own variables begin shows in where it has a map's value, since the map itself
 * remembers that value's place without the beginning (at BASE).
 */
static void put_cpu(struct bpf_program *program, int map)
{
    bpf_load_map(program, BPF_REG_1, map);
    bpf_copy(program, BPF_REG_2, BPF_REG_10);
    bpf_add(program, BPF_REG_2, KEY);
    bpf_copy(program, BPF_REG_3, BPF_REG_9);
    bpf_call(program, BPF_FUNC_map_lookup_percpu_elem);
    int none = bpf_jump_if(program, BPF_JEQ, BPF_REG_0, 0);
    bpf_store(program, MAP, BPF_REG_0);         /* through the stack it becomes a number to count with */
    bpf_copy(program, BPF_REG_3, BPF_REG_10);
    bpf_add(program, BPF_REG_3, MAP);
    bpf_probe(program, VALUE, 8);
    bpf_load(program, BPF_REG_3, BPF_REG_10, VALUE);
    bpf_load(program, BPF_REG_1, BPF_REG_10, BASE);
    bpf_combine(program, BPF_SUB, BPF_REG_3, BPF_REG_1);
    bpf_load(program, BPF_REG_1, BPF_REG_10, CPU);
    bpf_combine(program, BPF_ADD, BPF_REG_3, BPF_REG_1);
    bpf_clear(program, VALUE);
    bpf_probe(program, VALUE, 4);
    bpf_load(program, BPF_REG_1, BPF_REG_10, VALUE);
    bpf_load(program, BPF_REG_2, BPF_REG_10, FIELD(available_on_cpus));
    bpf_combine(program, BPF_ADD, BPF_REG_2, BPF_REG_1);
    bpf_store(program, FIELD(available_on_cpus), BPF_REG_2);
    bpf_lead(program, none, program->count);
}

/* Copy a field of the context to the record. */
static void put_field(struct bpf_program *program, int offset, int size, int to)
{
    bpf_load(program, BPF_REG_3, BPF_REG_10, CONTEXT);
    bpf_add(program, BPF_REG_3, offset);
    bpf_probe(program, to, size);
}

static void put_context(struct bpf_program *program, const struct layout *layout, int map, int cpus)
{
    for (int at = 0; at < RECORD; at += 8)
        bpf_clear(program, -RECORD + at);
    put_field(program, layout->id, 8, FIELD(id));
    put_field(program, layout->events, 4, FIELD(events));
    put_field(program, layout->available, 4, FIELD(available));
    put_field(program, layout->completed, 4, FIELD(completed));
    put_field(program, layout->cancellable, 8, FIELD(cancellable));
    bpf_load(program, BPF_REG_1, BPF_REG_10, FIELD(cancellable));
    bpf_load(program, BPF_REG_2, BPF_REG_10, CONTEXT);
    bpf_add(program, BPF_REG_2, layout->cancellable);
    bpf_combine(program, BPF_SUB, BPF_REG_1, BPF_REG_2);
    bpf_store(program, FIELD(cancellable), BPF_REG_1);
    put_field(program, layout->cpu, 8, CPU);
    bpf_set(program, BPF_REG_9, 0);
    int next = program->count;
    put_cpu(program, map);
    bpf_add(program, BPF_REG_9, 1);
    bpf_lead(program, bpf_jump_if(program, BPF_JLT, BPF_REG_9, cpus), next);
    bpf_load(program, BPF_REG_1, BPF_REG_6, 0);
    bpf_load(program, BPF_REG_1, BPF_REG_1, 0);
    bpf_copy(program, BPF_REG_2, BPF_REG_10);
    bpf_add(program, BPF_REG_2, -RECORD);
    bpf_set(program, BPF_REG_3, RECORD);
    bpf_call(program, BPF_FUNC_seq_write);
}

/* BASE: the map's own note of where its value lies. */
static void put_base(struct bpf_program *program, const struct layout *layout, int map)
{
    bpf_load_map(program, BPF_REG_1, map);
    bpf_store(program, MAP, BPF_REG_1);
    bpf_copy(program, BPF_REG_3, BPF_REG_10);
    bpf_add(program, BPF_REG_3, MAP);
    bpf_probe(program, VALUE, 8);
    bpf_load(program, BPF_REG_3, BPF_REG_10, VALUE);
    bpf_add(program, BPF_REG_3, layout->percpu_value);
    bpf_probe(program, BASE, 8);
}

/* context: { meta { seq … }, task }; task is NULL on the last call. Register 7: the table of contexts, 8: the number of one. */
static void write_program(struct bpf_program *program, const struct layout *layout, int map, int cpus)
{
    int limit = VERIFIER_BRANCHES / (BRANCHES_A_CONTEXT + BRANCHES_A_CPU * cpus);
    limit = limit > MOST_CONTEXTS ? MOST_CONTEXTS : limit;
    for (int at = BASE; at < 0; at += 8)
        bpf_clear(program, at);
    bpf_copy(program, BPF_REG_6, BPF_REG_1);
    bpf_load(program, BPF_REG_2, BPF_REG_1, 8);
    int no_task = bpf_jump_if(program, BPF_JEQ, BPF_REG_2, 0);
    bpf_load(program, BPF_REG_3, BPF_REG_2, layout->mm);
    int no_memory = bpf_jump_if(program, BPF_JEQ, BPF_REG_3, 0);
    bpf_add(program, BPF_REG_3, layout->table);
    bpf_probe(program, VALUE, 8);
    bpf_load(program, BPF_REG_7, BPF_REG_10, VALUE);
    int no_table = bpf_jump_if(program, BPF_JEQ, BPF_REG_7, 0);
    put_base(program, layout, map);
    bpf_copy(program, BPF_REG_3, BPF_REG_7);
    bpf_add(program, BPF_REG_3, layout->count);
    bpf_probe(program, COUNT, 4);
    bpf_set(program, BPF_REG_8, 0);
    int next = program->count;
    bpf_load(program, BPF_REG_1, BPF_REG_10, COUNT);
    int end = bpf_put(program, (struct bpf_insn){ .code = BPF_JMP | BPF_JGE | BPF_X, .dst_reg = BPF_REG_8, .src_reg = BPF_REG_1 });
    bpf_copy(program, BPF_REG_3, BPF_REG_8);
    bpf_put(program, (struct bpf_insn){ .code = BPF_ALU64 | BPF_LSH | BPF_K, .dst_reg = BPF_REG_3, .imm = 3 });
    bpf_combine(program, BPF_ADD, BPF_REG_3, BPF_REG_7);
    bpf_add(program, BPF_REG_3, layout->list);
    bpf_probe(program, CONTEXT, 8);
    bpf_load(program, BPF_REG_1, BPF_REG_10, CONTEXT);
    int free_place = bpf_jump_if(program, BPF_JEQ, BPF_REG_1, 0);
    put_context(program, layout, map, cpus);
    bpf_lead(program, free_place, program->count);
    bpf_add(program, BPF_REG_8, 1);
    bpf_lead(program, bpf_jump_if(program, BPF_JLT, BPF_REG_8, limit), next);
    int last = program->count;
    bpf_lead(program, no_task, last);
    bpf_lead(program, no_memory, last);
    bpf_lead(program, no_table, last);
    bpf_lead(program, end, last);
    bpf_set(program, BPF_REG_0, 0);
    bpf_put(program, (struct bpf_insn){ .code = BPF_JMP | BPF_EXIT });
}

int aio_reader_open(void)
{
    struct layout layout;
    struct bpf_program program = { 0 };
    long cpus = sysconf(_SC_NPROCESSORS_CONF);
    union bpf_attr map = { .map_type = BPF_MAP_TYPE_PERCPU_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 1 };
    AUTO_CLOSE int map_fd = cpus < 1 || read_layout(&layout) < 0 ? -1 : kernel_bpf(BPF_MAP_CREATE, &map);
    if (map_fd < 0)
        return -1;
    write_program(&program, &layout, map_fd, (int)cpus);
    union bpf_attr attributes = {
        .prog_type = BPF_PROG_TYPE_TRACING, .expected_attach_type = BPF_TRACE_ITER, .attach_btf_id = layout.iterator,
        .insns = (uint64_t)program.code, .insn_cnt = (uint32_t)program.count, .license = (uint64_t)"Dual BSD/GPL", .prog_name = "tclone_aio",
    };
    return kernel_bpf(BPF_PROG_LOAD, &attributes);
}

ssize_t aio_reader_read(int reader, pid_t tid, struct aio_record **records)
{
    AUTO_CLOSE int fd = kernel_bpf_iterate(reader, tid);
    if (fd < 0)
        return -1;
    size_t size = 64 * sizeof **records, used = 0;
    char *block = must_alloc(size);
    for (ssize_t got; (got = read(fd, block + used, size - used)) != 0;) {
        if (got < 0 && errno != EAGAIN && errno != EINTR) {
            free(block);
            return -1;
        }
        used += got > 0 ? (size_t)got : 0;
        if (used == size)
            block = must_grow(block, size *= 2);
    }
    *records = (struct aio_record *)block;
    return (ssize_t)(used / sizeof **records);
}

int64_t aio_record_in_flight(const struct aio_record *record)
{
    return (int64_t)record->events - 1 - (int64_t)(record->available + record->completed + record->available_on_cpus);
}
