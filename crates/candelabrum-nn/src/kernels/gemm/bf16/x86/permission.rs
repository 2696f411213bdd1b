//! The permission to use tiles, which Linux gives a process that asks (since version 5.16).

/// Asks for the permission. Its answer holds for all threads of the process, and for its children.
pub(super) fn asked() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call has no pointers.
    let result =
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
    result == 0
}
