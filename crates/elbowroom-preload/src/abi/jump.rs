//! Functions that cannot be written in Rust: stubs for vfork, and for lists of arguments.

/// Exports functions that must not have a stack frame of ours, as vfork, whose child returns from it on the
/// parent's stack. The exported function saves the argument registers, calls `$before`, which gives libc's
/// function, and jumps to that with all registers as they were.
macro_rules! export_jumps {
    ($($name:ident = $before:path;)*) => {
        $(
            /// libc's function of this name.
            ///
            /// # Safety
            /// As libc's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, allow(dead_code))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> c_int {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                    "call {before}",
                    "mov r11, rax",
                    "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                    "jmp r11",
                    before = sym $before,
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    "stp x29, x30, [sp, #-80]!",
                    "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                    "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                    "bl {before}",
                    "mov x16, x0",
                    "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]",
                    "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                    "ldp x29, x30, [sp], #80",
                    "br x16",
                    before = sym $before,
                );
            }
        )*
    };
}

/// Exports functions that take one argument and then a list of any length, which must be a list of
/// pointers. The pointers that came in registers are put on the stack below the others, so that all of the
/// list is an array; `$with` gets the first argument and the array.
macro_rules! export_lists {
    ($($name:ident = $with:path;)*) => {
        $(
            /// libc's function of this name.
            ///
            /// # Safety
            /// As libc's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, allow(dead_code))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> c_int {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    "pop r11",
                    "push r9", "push r8", "push rcx", "push rdx", "push rsi",
                    "mov rsi, rsp",
                    "push r11",
                    "call {with}",
                    "pop r11",
                    "add rsp, 40",
                    "push r11",
                    "ret",
                    with = sym $with,
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    "stp x30, x1, [sp, #-64]!",
                    "stp x2, x3, [sp, #16]", "stp x4, x5, [sp, #32]", "stp x6, x7, [sp, #48]",
                    "add x1, sp, #8",
                    "bl {with}",
                    "ldr x30, [sp], #64",
                    "ret",
                    with = sym $with,
                );
            }
        )*
    };
}

/// dprintf and relatives have any number of arguments. So the exported function saves the argument
/// registers, calls [`before_print`](crate::agent::stdio::before_print), and jumps to libc's function with
/// everything as it was.
macro_rules! export_print {
    ($($name:ident = $before:ident: $real:literal;)*) => {
        $(
            unsafe extern "C" fn $before(fd: c_int) -> *mut c_void {
                crate::agent::stdio::before_print(fd, $real)
            }

            /// libc's function of this name.
            ///
            /// # Safety
            /// As libc's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, allow(dead_code))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> c_int {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                    "sub rsp, 128",
                    "movaps [rsp], xmm0", "movaps [rsp + 16], xmm1",
                    "movaps [rsp + 32], xmm2", "movaps [rsp + 48], xmm3",
                    "movaps [rsp + 64], xmm4", "movaps [rsp + 80], xmm5",
                    "movaps [rsp + 96], xmm6", "movaps [rsp + 112], xmm7",
                    "call {before}",
                    "mov r11, rax",
                    "movaps xmm0, [rsp]", "movaps xmm1, [rsp + 16]",
                    "movaps xmm2, [rsp + 32]", "movaps xmm3, [rsp + 48]",
                    "movaps xmm4, [rsp + 64]", "movaps xmm5, [rsp + 80]",
                    "movaps xmm6, [rsp + 96]", "movaps xmm7, [rsp + 112]",
                    "add rsp, 128",
                    "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                    "jmp r11",
                    before = sym $before,
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    "stp x29, x30, [sp, #-208]!",
                    "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                    "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                    "stp q0, q1, [sp, #80]", "stp q2, q3, [sp, #112]",
                    "stp q4, q5, [sp, #144]", "stp q6, q7, [sp, #176]",
                    "bl {before}",
                    "mov x16, x0",
                    "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]",
                    "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                    "ldp q0, q1, [sp, #80]", "ldp q2, q3, [sp, #112]",
                    "ldp q4, q5, [sp, #144]", "ldp q6, q7, [sp, #176]",
                    "ldp x29, x30, [sp], #208",
                    "br x16",
                    before = sym $before,
                );
            }
        )*
    };
}
