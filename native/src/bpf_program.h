/* Instructions of small BPF programs, one after the other. Registers: 0 result, 1 to 5 arguments, 6 to 9 kept over calls, 10 the stack. */
#ifndef TCLONE_BPF_PROGRAM_H
#define TCLONE_BPF_PROGRAM_H

#include <linux/bpf.h>

#define MAX_INSTRUCTIONS 256

struct bpf_program {
    struct bpf_insn code[MAX_INSTRUCTIONS];
    int count;
};

int bpf_put(struct bpf_program *program, struct bpf_insn instruction);
void bpf_set(struct bpf_program *program, int to, int value);
void bpf_copy(struct bpf_program *program, int to, int from);
void bpf_add(struct bpf_program *program, int to, int value);
void bpf_combine(struct bpf_program *program, int operation, int to, int from);
void bpf_load(struct bpf_program *program, int to, int from, int offset);
void bpf_store(struct bpf_program *program, int offset, int from);
void bpf_clear(struct bpf_program *program, int offset);
void bpf_call(struct bpf_program *program, int function);
int bpf_jump_if(struct bpf_program *program, int condition, int reg, int value);
/* Let the jump at `from` lead to the instruction `to`. */
void bpf_lead(struct bpf_program *program, int from, int to);
/* Copy `size` bytes of the kernel's memory at register 3 to the stack. */
void bpf_probe(struct bpf_program *program, int offset, int size);
void bpf_load_map(struct bpf_program *program, int to, int map);

#endif
