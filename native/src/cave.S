/*
 * The cave: code for the unused end of the vdso's last page, from where a thread of the source executes one syscall (mmap or munmap of the
 * scratch mapping) and can find back to its program by itself. Position independent.
 */
.intel_syntax noprefix
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
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    pop r11
    pop r10
    pop r9
    pop r8
    pop rax
    pop rcx
    pop rdx
    pop rsi
    pop rdi
    iretq
    .balign 8
cave_frame:
    .skip 168
cave_end:
.section .note.GNU-stack,"",@progbits
