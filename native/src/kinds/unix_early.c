#include "unix_early.h"
#include "../bpf_program.h"
#include "../kernel_types.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_MESSAGES 32
#define CHUNK 256
#define MOST_CHUNKS 16          /* the kernel keeps no more than a page's worth in the buffer itself */
#define OUTPUT_LIMIT (1u << 20)

/* Before the bytes of each message, which are padded to whole chunks. */
struct early_head {
    uint64_t fd, length, in_pages, rights, queued;
};
#define HEAD ((int)sizeof(struct early_head))

/* Offsets in struct unix_sock, sock, sk_buff …. */
struct layout {
    uint32_t iterator;
    int file, socket_sk, family, peer, owner, queue, queue_length, next, length, in_pages, data, rights;
};

static int read_layout(struct layout *layout)
{
    struct kernel_types types = { 0 };
    enum { ITERATOR, CONTEXT, SOCKET, COMMON, SOCK, UNIX, HEAD_OF_QUEUE, BUFFER, PARAMETERS, WANTED };
    struct wanted_type wanted[WANTED] = {
        [ITERATOR] = { BTF_KIND_FUNC, "bpf_iter_task_file", 0 }, [CONTEXT] = { BTF_KIND_STRUCT, "bpf_iter__task_file", 0 },
        [SOCKET] = { BTF_KIND_STRUCT, "socket", 0 }, [COMMON] = { BTF_KIND_STRUCT, "sock_common", 0 }, [SOCK] = { BTF_KIND_STRUCT, "sock", 0 },
        [UNIX] = { BTF_KIND_STRUCT, "unix_sock", 0 }, [HEAD_OF_QUEUE] = { BTF_KIND_STRUCT, "sk_buff_head", 0 },
        [BUFFER] = { BTF_KIND_STRUCT, "sk_buff", 0 }, [PARAMETERS] = { BTF_KIND_STRUCT, "unix_skb_parms", 0 },
    };
    int status = -1, control = -1;
    if (kernel_types_open(&types) == 0 && kernel_types_find(&types, wanted, WANTED)) {
        const struct { int *offset; int type; const char *member; } fields[] = {
            { &layout->file, CONTEXT, "file" }, { &layout->socket_sk, SOCKET, "sk" }, { &layout->family, COMMON, "skc_family" },
            { &layout->peer, UNIX, "peer" }, { &layout->owner, SOCK, "sk_socket" }, { &layout->queue, SOCK, "sk_receive_queue" },
            { &layout->queue_length, HEAD_OF_QUEUE, "qlen" }, { &layout->next, BUFFER, "next" }, { &layout->length, BUFFER, "len" },
            { &layout->in_pages, BUFFER, "data_len" }, { &layout->data, BUFFER, "data" }, { &control, BUFFER, "cb" },
            { &layout->rights, PARAMETERS, "fp" },
        };
        layout->iterator = wanted[ITERATOR].id;
        status = 0;
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            *fields[i].offset = kernel_types_member(&types, wanted[fields[i].type].id, fields[i].member, 0);
            status |= *fields[i].offset < 0 ? -1 : 0;
        }
        layout->rights += control;
    }
    kernel_types_close(&types);
    return status;
}

/* ---- the program ---- */

/* The stack, from its top: one chunk of bytes, the head of a message, then these. */
enum { BYTES = -CHUNK, MESSAGE = BYTES - HEAD, VALUE = MESSAGE - 8, ANCHOR = MESSAGE - 16, DATA = MESSAGE - 24, LOWEST = DATA };
#define FIELD(name) (MESSAGE + (int)offsetof(struct early_head, name))

/* Copy a field of what register 7 points to. */
static void put_field(struct bpf_program *program, int offset, int size, int to)
{
    bpf_clear(program, to);
    bpf_copy(program, BPF_REG_3, BPF_REG_7);
    bpf_add(program, BPF_REG_3, offset);
    bpf_probe(program, to, size);
}

static void put_write(struct bpf_program *program, int from, int size)
{
    bpf_load(program, BPF_REG_1, BPF_REG_6, 0);
    bpf_load(program, BPF_REG_1, BPF_REG_1, 0);
    bpf_copy(program, BPF_REG_2, BPF_REG_10);
    bpf_add(program, BPF_REG_2, from);
    bpf_set(program, BPF_REG_3, size);
    bpf_call(program, BPF_FUNC_seq_write);
}

/* The message at register 7: its head, then its chunks (counted in register 9), read one after the other from DATA on. */
static void put_message(struct bpf_program *program, const struct layout *layout)
{
    put_field(program, layout->length, 4, FIELD(length));
    put_field(program, layout->in_pages, 4, FIELD(in_pages));
    put_field(program, layout->rights, 8, FIELD(rights));
    put_field(program, layout->data, 8, DATA);
    put_write(program, MESSAGE, HEAD);
    bpf_set(program, BPF_REG_9, 0);
    int next = program->count;
    bpf_load(program, BPF_REG_1, BPF_REG_10, FIELD(length));
    bpf_set(program, BPF_REG_2, CHUNK);
    bpf_copy(program, BPF_REG_3, BPF_REG_9);
    bpf_put(program, (struct bpf_insn){ .code = BPF_ALU64 | BPF_MUL | BPF_X, .dst_reg = BPF_REG_3, .src_reg = BPF_REG_2 });
    int whole = bpf_put(program, (struct bpf_insn){ .code = BPF_JMP | BPF_JGE | BPF_X, .dst_reg = BPF_REG_3, .src_reg = BPF_REG_1 });
    bpf_load(program, BPF_REG_1, BPF_REG_10, DATA);
    bpf_combine(program, BPF_ADD, BPF_REG_3, BPF_REG_1);
    bpf_probe(program, BYTES, CHUNK);
    put_write(program, BYTES, CHUNK);
    bpf_add(program, BPF_REG_9, 1);
    bpf_lead(program, bpf_jump_if(program, BPF_JLT, BPF_REG_9, MOST_CHUNKS), next);
    bpf_lead(program, whole, program->count);
}

/* context: { meta { seq … }, task, fd, file }; file is NULL on the last call. Register 7 is where we are, 8 counts messages. */
static void write_program(struct bpf_program *program, const struct layout *layout)
{
    int leave[8], leaves = 0;
    for (int at = LOWEST; at < 0; at += 8)
        bpf_clear(program, at);
    bpf_copy(program, BPF_REG_6, BPF_REG_1);
    bpf_put(program, (struct bpf_insn){ .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = BPF_REG_2, .src_reg = BPF_REG_6, .off = 16 });
    bpf_store(program, FIELD(fd), BPF_REG_2);
    bpf_load(program, BPF_REG_1, BPF_REG_6, layout->file);
    leave[leaves++] = bpf_jump_if(program, BPF_JEQ, BPF_REG_1, 0);
    bpf_call(program, BPF_FUNC_sock_from_file);
    leave[leaves++] = bpf_jump_if(program, BPF_JEQ, BPF_REG_0, 0);
    bpf_load(program, BPF_REG_3, BPF_REG_0, layout->socket_sk);
    bpf_store(program, ANCHOR, BPF_REG_3);      /* through the stack it becomes a number to count with */
    bpf_copy(program, BPF_REG_3, BPF_REG_10);
    bpf_add(program, BPF_REG_3, ANCHOR);
    bpf_probe(program, VALUE, 8);
    bpf_load(program, BPF_REG_7, BPF_REG_10, VALUE);
    leave[leaves++] = bpf_jump_if(program, BPF_JEQ, BPF_REG_7, 0);
    put_field(program, layout->family, 2, VALUE);
    bpf_load(program, BPF_REG_1, BPF_REG_10, VALUE);
    leave[leaves++] = bpf_jump_if(program, BPF_JNE, BPF_REG_1, AF_UNIX);
    put_field(program, layout->peer, 8, VALUE);
    bpf_load(program, BPF_REG_7, BPF_REG_10, VALUE);
    leave[leaves++] = bpf_jump_if(program, BPF_JEQ, BPF_REG_7, 0);
    put_field(program, layout->owner, 8, VALUE);
    bpf_load(program, BPF_REG_1, BPF_REG_10, VALUE);
    leave[leaves++] = bpf_jump_if(program, BPF_JNE, BPF_REG_1, 0);      /* accepted: its queue is peeked at like any other */
    put_field(program, layout->queue + layout->queue_length, 4, FIELD(queued));
    bpf_add(program, BPF_REG_7, layout->queue);
    bpf_store(program, ANCHOR, BPF_REG_7);
    bpf_set(program, BPF_REG_8, 0);
    int next = program->count;
    put_field(program, layout->next, 8, VALUE);
    bpf_load(program, BPF_REG_7, BPF_REG_10, VALUE);
    bpf_load(program, BPF_REG_1, BPF_REG_10, ANCHOR);
    leave[leaves++] = bpf_put(program, (struct bpf_insn){ .code = BPF_JMP | BPF_JEQ | BPF_X, .dst_reg = BPF_REG_7, .src_reg = BPF_REG_1 });
    put_message(program, layout);
    bpf_add(program, BPF_REG_8, 1);
    bpf_lead(program, bpf_jump_if(program, BPF_JLT, BPF_REG_8, MOST_MESSAGES), next);
    for (int i = 0; i < leaves; i++)
        bpf_lead(program, leave[i], program->count);
    bpf_set(program, BPF_REG_0, 0);
    bpf_put(program, (struct bpf_insn){ .code = BPF_JMP | BPF_EXIT });
}

static int load(void)
{
    struct layout layout;
    struct bpf_program program = { 0 };
    if (read_layout(&layout) < 0)
        return -1;
    write_program(&program, &layout);
    union bpf_attr attributes = {
        .prog_type = BPF_PROG_TYPE_TRACING, .expected_attach_type = BPF_TRACE_ITER, .attach_btf_id = layout.iterator,
        .insns = (uint64_t)program.code, .insn_cnt = (uint32_t)program.count, .license = (uint64_t)"Dual BSD/GPL", .prog_name = "tclone_early",
    };
    return kernel_bpf(BPF_PROG_LOAD, &attributes);
}

/* ---- what it tells ---- */

static char *output;            /* of all clients, read once: the source stands still */
static size_t output_size;

static void read_output(void)
{
    AUTO_CLOSE int program = load();
    AUTO_CLOSE int fd = program < 0 ? -1 : kernel_bpf_iterate(program, getpid());
    output = must_alloc(OUTPUT_LIMIT);
    for (ssize_t got; fd >= 0 && output_size < OUTPUT_LIMIT && (got = read(fd, output + output_size, OUTPUT_LIMIT - output_size)) != 0;) {
        if (got < 0 && errno != EAGAIN && errno != EINTR) {
            output_size = 0;    /* more of one client than the iterator's buffer holds, for example */
            return;
        }
        output_size += got > 0 ? (size_t)got : 0;
    }
}

int unix_early_read(const struct unix_socket *client, struct unix_message **messages)
{
    uint64_t count = 0, queued = 0;
    struct unix_message *list = NULL;
    if (!output)
        read_output();
    for (size_t at = 0; at + HEAD <= output_size;) {
        struct early_head head;
        memcpy(&head, output + at, sizeof head);
        at += sizeof head;
        size_t chunks = (head.length + CHUNK - 1) / CHUNK, room = (chunks > MOST_CHUNKS ? MOST_CHUNKS : chunks) * CHUNK;
        if (at + room > output_size)
            break;
        if (head.fd == (uint64_t)client->description->local) {
            queued = head.queued;
            if (head.in_pages || head.rights || chunks > MOST_CHUNKS || head.length == 0)
                break;
            list = must_grow(list, (size_t)(count + 1) * sizeof *list);
            list[count] = (struct unix_message){ .data = must_alloc(head.length), .size = head.length };
            memcpy(list[count++].data, output + at, head.length);
        }
        at += room;
    }
    *messages = list;
    return count > 0 && count == queued ? (int)count : -1;
}
