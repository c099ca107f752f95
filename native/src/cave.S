/*
 * The cave: code for the unused end of the vdso's last page, from where a thread of the source executes one syscall (mmap or munmap of the
 * scratch mapping) and can find back to its program by itself. Position independent.
 */
.intel_syntax noprefix
#include "resume.h"
.section .rodata
.balign 16
.globl cave_start, cave_frame, cave_end
cave_start:
    syscall
    mov edi, 2          /* SIG_SETMASK */
    lea rsi, [rip+cave_frame]
    xor edx, edx
    mov r10d, 8
    mov eax, 14         /* rt_sigprocmask */
    syscall
    lea rsp, [rip+cave_frame+8]
    pop_registers
    .balign 8
cave_frame:
    .skip 168
cave_end:
.section .note.GNU-stack,"",@progbits
