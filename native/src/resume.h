/* Assembly: with rsp at the r15 field of a struct resume_frame (op.h), become the interrupted program. */
.macro pop_registers
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
.endm
