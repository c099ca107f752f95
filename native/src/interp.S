/*
 * The interpreter of batches (op.h). Position independent, no stack, no relocation: it is copied into the scratch mapping of a source
 * process and into a branch's arena. r12 = current op, r13 = struct op_fault, ebx = flags; the kernel preserves all but rax, rcx, r11.
 */
.intel_syntax noprefix
#include "resume.h"
.section .rodata
.balign 64
.globl interp_start, interp_resume, interp_end
interp_start:
    mov r12, rdi
    mov r13, rsi
.Lnext:
    mov ebx, [r12+4]
    mov rdi, [r12+8]
    mov rsi, [r12+16]
    mov rdx, [r12+24]
    mov r10, [r12+32]
    mov r8,  [r12+40]
    mov r9,  [r12+48]
.macro load bit, reg, reg32
    bt ebx, \bit
    jnc 1f
    mov \reg, [\reg]
1:  bt ebx, \bit+16
    jnc 1f
    movsxd \reg, dword ptr [\reg]
1:
.endm
    load 0, rdi
    load 1, rsi
    load 2, rdx
    load 3, r10
    load 4, r8
    load 5, r9
    movsxd rax, dword ptr [r12]
    test eax, eax
    js .Lpseudo
    syscall
.Lresult:
    mov [r12+56], rax
    cmp rax, -4095
    jae .Lerror
    mov rcx, [r12+72]
    test rcx, rcx
    jz .Ladvance
    mov [rcx], rax
.Ladvance:
    add r12, 80
    jmp .Lnext
.Lerror:
    bt ebx, 8           /* OP_ANY_ERROR */
    jc .Ladvance
    neg rax
    cmp rax, 127
    ja .Lfault
    shr ebx, 9          /* OP_TOLERATE: the row of the table behind struct op_fault */
    and ebx, 63
    shl ebx, 4
    bt qword ptr [r13+rbx+16], rax
    jc .Ladvance
.Lfault:
    mov [r13+8], r12
    mov dword ptr [r13], 1
    mov rdi, r13
    mov esi, 1          /* FUTEX_WAKE */
    mov edx, 0x7fffffff
    mov eax, 202
    syscall
.Lhang:
    mov eax, 34         /* pause: the tracer's cleanup kills us */
    syscall
    jmp .Lhang

.Lpseudo:
    cmp eax, -1
    je .Lstop
    cmp eax, -2
    je .Lwait
    cmp eax, -3
    je .Lsignal
    cmp eax, -4
    je .Lclone
    cmp eax, -5
    je .Lexpect
    cmp eax, -6
    je .Lpark
    cmp eax, -7
    je .Lresume
    cmp eax, -8
    je .Ltime_left
    mov rax, -38
    jmp .Lresult
.Lstop:
    int3
    jmp .Ladvance
.Lwait:
    mov r14, rdi
    mov r15, rsi
2:  mov edx, [r14]
    cmp edx, r15d
    jae .Ladvance
    mov rdi, r14
    xor esi, esi        /* FUTEX_WAIT */
    xor r10d, r10d
    mov eax, 202
    syscall
    jmp 2b
.Lsignal:
    lock inc dword ptr [rdi]
    mov esi, 1
    mov edx, 0x7fffffff
    mov eax, 202
    syscall
    jmp .Ladvance
.Lclone:
    mov eax, 435
    syscall
    test rax, rax
    jnz .Lresult
    mov r12, [rsp]
    mov r13, [rsp+8]
    jmp .Lnext
.Lexpect:
    mov [r12+56], rdi
    cmp rdi, rsi
    je .Ladvance
    mov rax, -84        /* EILSEQ */
    jmp .Lresult
.Lpark:
    mov dword ptr [rdi], 1
    mov rdx, rsi        /* ppoll of nothing: unlike nanosleep it leaves the restart block of an interrupted syscall alone */
    xor edi, edi
    xor esi, esi
    xor r10d, r10d
    xor r8d, r8d
    mov eax, 271
    syscall
    jmp .Ladvance
.Ltime_left:
    mov r14, rdi
    mov r15, rsi
    mov rbx, rdx
    mov rsi, rdi
    mov edi, 1          /* CLOCK_MONOTONIC */
    mov eax, 228        /* clock_gettime */
    syscall
    mov ecx, 1000000000
    mov rax, [r14]
    imul rax, rcx
    add rax, [r14+8]
    sub r15, rax
    cmp r15, rbx
    jge 1f
    test r10, r10
    jz 2f
    mov rax, r15
    neg rax
    js 2f
    xor edx, edx
    div r10
    inc rax
    add [r8], rax
    mov r15, r10
    sub r15, rdx
    cmp r15, rbx
    jge 1f
2:  mov r15, rbx
1:  mov rax, r15
    xor edx, edx
    div rcx
    mov [r14], rax
    mov rax, rdx
    xor edx, edx
    div rbx
    mov [r14+8], rax
    jmp .Ladvance
.Lresume:
    mov r12, rdi
interp_resume:          /* from here on r12 is no longer the op (tidy.c) */
    mov edi, 2          /* SIG_SETMASK; what is pending is delivered here, on the program's own stack */
    mov rsi, r12
    xor edx, edx
    mov r10d, 8
    mov eax, 14         /* rt_sigprocmask */
    syscall
    lea rsp, [r12+8]
    pop_registers
interp_end:
.section .note.GNU-stack,"",@progbits
