/*
 * The subset of classic BPF that the kernel accepts as a seccomp filter (seccomp_check_filter). Jumps only go forward, so a program of n instructions
 * ends after n steps. The programs come from the workspace: whatever is out of bounds counts as a kill.
 */
#include "filter_verdict.h"
#include "parts/parts.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <string.h>

#define SHIFT_MASK 31u

_Static_assert(sizeof(struct sock_filter) == sizeof(uint64_t), "parts.h keeps instructions as 64-bit numbers");

struct machine {
    uint32_t a, x, memory[BPF_MEMWORDS];
    const struct seccomp_data *call;
    bool failed;
};

static uint32_t load_word(struct machine *machine, uint32_t offset)
{
    uint32_t word = 0;
    if (offset > sizeof *machine->call - sizeof word || offset % sizeof word) {
        machine->failed = true;
        return 0;
    }
    memcpy(&word, (const char *)machine->call + offset, sizeof word);
    return word;
}

static uint32_t *memory_word(struct machine *machine, uint32_t index)
{
    if (index >= BPF_MEMWORDS) {
        machine->failed = true;
        return &machine->memory[0];
    }
    return &machine->memory[index];
}

static uint32_t load(struct machine *machine, const struct sock_filter *instruction)
{
    switch (BPF_MODE(instruction->code)) {
    case BPF_IMM: return instruction->k;
    case BPF_MEM: return *memory_word(machine, instruction->k);
    case BPF_LEN: return sizeof *machine->call;
    case BPF_ABS: return load_word(machine, instruction->k);
    default:
        machine->failed = true;
        return 0;
    }
}

static void calculate(struct machine *machine, const struct sock_filter *instruction)
{
    uint32_t operand = BPF_SRC(instruction->code) == BPF_X ? machine->x : instruction->k;
    switch (BPF_OP(instruction->code)) {
    case BPF_ADD: machine->a += operand; break;
    case BPF_SUB: machine->a -= operand; break;
    case BPF_MUL: machine->a *= operand; break;
    case BPF_AND: machine->a &= operand; break;
    case BPF_OR: machine->a |= operand; break;
    case BPF_XOR: machine->a ^= operand; break;
    case BPF_LSH: machine->a <<= operand & SHIFT_MASK; break;
    case BPF_RSH: machine->a >>= operand & SHIFT_MASK; break;
    case BPF_NEG: machine->a = -machine->a; break;
    case BPF_DIV:
        machine->failed = operand == 0;     /* ends the program with 0: a kill */
        machine->a = operand ? machine->a / operand : 0;
        break;
    default: machine->failed = true;
    }
}

/* How many instructions are left out. */
static uint32_t jump(struct machine *machine, const struct sock_filter *instruction)
{
    uint32_t operand = BPF_SRC(instruction->code) == BPF_X ? machine->x : instruction->k;
    bool holds = false;
    switch (BPF_OP(instruction->code)) {
    case BPF_JA: return instruction->k;
    case BPF_JEQ: holds = machine->a == operand; break;
    case BPF_JGT: holds = machine->a > operand; break;
    case BPF_JGE: holds = machine->a >= operand; break;
    case BPF_JSET: holds = (machine->a & operand) != 0; break;
    default: machine->failed = true;
    }
    return holds ? instruction->jt : instruction->jf;
}

static uint32_t run(const struct filter *filter, const struct seccomp_data *call)
{
    const struct sock_filter *program = (const struct sock_filter *)filter->instructions;
    struct machine machine = { .call = call };
    for (uint64_t at = 0; at < filter->length && !machine.failed; at++) {
        const struct sock_filter *instruction = &program[at];
        switch (BPF_CLASS(instruction->code)) {
        case BPF_LD: machine.a = load(&machine, instruction); break;
        case BPF_LDX: machine.x = load(&machine, instruction); break;
        case BPF_ST: *memory_word(&machine, instruction->k) = machine.a; break;
        case BPF_STX: *memory_word(&machine, instruction->k) = machine.x; break;
        case BPF_ALU: calculate(&machine, instruction); break;
        case BPF_JMP: at += jump(&machine, instruction); break;
        case BPF_RET: return BPF_RVAL(instruction->code) == BPF_A ? machine.a : instruction->k;
        case BPF_MISC:
            if (BPF_MISCOP(instruction->code) == BPF_TAX)
                machine.x = machine.a;
            else
                machine.a = machine.x;
        }
    }
    return SECCOMP_RET_KILL_PROCESS;
}

uint32_t filter_verdict(const struct filter *first, const struct filter *end, const struct seccomp_data *call)
{
    uint32_t verdict = SECCOMP_RET_ALLOW;
    for (const struct filter *filter = first; filter && filter != end; filter = filter->next) {
        uint32_t action = run(filter, call) & SECCOMP_RET_ACTION_FULL;
        if ((int32_t)action < (int32_t)verdict)
            verdict = action;
    }
    return verdict;
}

struct seccomp_data filter_call(int number)
{
    return (struct seccomp_data){ .nr = number, .arch = AUDIT_ARCH_X86_64 };
}

bool filter_lets_through(uint32_t verdict)
{
    return verdict == SECCOMP_RET_ALLOW || verdict == SECCOMP_RET_LOG;
}
