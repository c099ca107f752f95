#include "bpf_program.h"

int bpf_put(struct bpf_program *program, struct bpf_insn instruction)
{
    program->code[program->count] = instruction;
    return program->count++;
}

void bpf_set(struct bpf_program *program, int to, int value)
{
    bpf_put(program, (struct bpf_insn){ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = (unsigned char)to, .imm = value });
}

void bpf_copy(struct bpf_program *program, int to, int from)
{
    bpf_put(program, (struct bpf_insn){ .code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = (unsigned char)to, .src_reg = (unsigned char)from });
}

void bpf_add(struct bpf_program *program, int to, int value)
{
    bpf_put(program, (struct bpf_insn){ .code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = (unsigned char)to, .imm = value });
}

void bpf_combine(struct bpf_program *program, int operation, int to, int from)
{
    bpf_put(program, (struct bpf_insn){ .code = (unsigned char)(BPF_ALU64 | operation | BPF_X), .dst_reg = (unsigned char)to,
                                    .src_reg = (unsigned char)from });
}

void bpf_load(struct bpf_program *program, int to, int from, int offset)
{
    bpf_put(program, (struct bpf_insn){ .code = BPF_LDX | BPF_MEM | BPF_DW, .dst_reg = (unsigned char)to, .src_reg = (unsigned char)from,
                                    .off = (short)offset });
}

void bpf_store(struct bpf_program *program, int offset, int from)
{
    bpf_put(program, (struct bpf_insn){ .code = BPF_STX | BPF_MEM | BPF_DW, .dst_reg = BPF_REG_10, .src_reg = (unsigned char)from, .off = (short)offset });
}

void bpf_clear(struct bpf_program *program, int offset)
{
    bpf_put(program, (struct bpf_insn){ .code = BPF_ST | BPF_MEM | BPF_DW, .dst_reg = BPF_REG_10, .off = (short)offset });
}

void bpf_call(struct bpf_program *program, int function)
{
    bpf_put(program, (struct bpf_insn){ .code = BPF_JMP | BPF_CALL, .imm = function });
}

int bpf_jump_if(struct bpf_program *program, int condition, int reg, int value)
{
    return bpf_put(program, (struct bpf_insn){ .code = (unsigned char)(BPF_JMP | condition | BPF_K), .dst_reg = (unsigned char)reg, .imm = value });
}

void bpf_lead(struct bpf_program *program, int from, int to)
{
    program->code[from].off = (short)(to - from - 1);
}

void bpf_probe(struct bpf_program *program, int offset, int size)
{
    bpf_copy(program, BPF_REG_1, BPF_REG_10);
    bpf_add(program, BPF_REG_1, offset);
    bpf_set(program, BPF_REG_2, size);
    bpf_call(program, BPF_FUNC_probe_read_kernel);
}

void bpf_load_map(struct bpf_program *program, int to, int map)
{
    bpf_put(program, (struct bpf_insn){ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = (unsigned char)to, .src_reg = BPF_PSEUDO_MAP_FD, .imm = map });
    bpf_put(program, (struct bpf_insn){ 0 });
}
