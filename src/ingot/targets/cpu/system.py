"""The driver's use of processor and operating system, in LLVM IR: the clock, futexes, and the core of a thread.

The fields of the pool are described in `targets/cpu/driver.py`.
"""

from __future__ import annotations

from string import Template

# Per architecture: system call numbers, the spin hint, and a constant-rate tick counter readable in user mode
# (llvm.readcyclecounter reads PMCCNTR_EL0 on AArch64, which traps). Intrinsics, not inline assembly: llvmlite has
# no assembly parser for foreign targets.
CALLS = {
    "x86_64": {
        "FUTEX": "202",
        "YIELD": "24",
        "GETTIME": "228",
        "GETCPU": "309",
        "SETAFFINITY": "203",
        "GETAFFINITY": "204",
        "PAUSE": "call void @llvm.x86.sse2.pause()",
        "CLOCK": "%now = call i64 @llvm.readcyclecounter()",
        "DECLARE": "declare i64 @llvm.readcyclecounter()\ndeclare void @llvm.x86.sse2.pause()",
    },
    "aarch64": {
        "FUTEX": "98",
        "YIELD": "124",
        "GETTIME": "113",
        "GETCPU": "168",
        "SETAFFINITY": "122",
        "GETAFFINITY": "123",
        "PAUSE": "call void @llvm.aarch64.isb(i32 15)",
        "CLOCK": "%now = call i64 @llvm.read_volatile_register.i64(metadata !0)",
        "DECLARE": "declare i64 @llvm.read_volatile_register.i64(metadata)\ndeclare void @llvm.aarch64.isb(i32)\n"
        '!0 = !{!"cntvct_el0"}',
    },
    "riscv64": {
        "FUTEX": "98",
        "YIELD": "124",
        "GETTIME": "113",
        "GETCPU": "168",
        "SETAFFINITY": "122",
        "GETAFFINITY": "123",
        "PAUSE": "; Zihintpause is not among the features",
        "CLOCK": "%now = call i64 @llvm.readsteadycounter()",
        "DECLARE": "declare i64 @llvm.readsteadycounter()",
    },
}

# 137 = FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 138 = FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG (futex(2)).
# Bit 1 wakes workers, bit 2 the caller.
SYSTEM = Template("""
$DECLARE

define i64 @ingot_clock() nounwind {
  $CLOCK
  ret i64 %now
}

define internal void @wake.caller(ptr %pool) nounwind {
  %flag = getelementptr i8, ptr %pool, i64 264
  %asleep = load atomic i64, ptr %flag seq_cst, align 8
  %needed = icmp ne i64 %asleep, 0
  br i1 %needed, label %take, label %done
take: ; the flag goes with the first call: the caller may get no core for long
  %first = atomicrmw xchg ptr %flag, i64 0 seq_cst, align 8
  %still = icmp ne i64 %first, 0
  br i1 %still, label %wake, label %done
wake:
  %syscall.at = getelementptr i8, ptr %pool, i64 512
  %syscall = load ptr, ptr %syscall.at
  %r = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %pool, i64 138, i64 1, i64 0, i64 0, i64 2)
  br label %done
done:
  ret void
}

define internal void @wake.workers(ptr %pool, i64 %limit) nounwind {
  %count.at = getelementptr i8, ptr %pool, i64 256
  %asleep = load atomic i64, ptr %count.at seq_cst, align 8
  %needed = icmp ne i64 %asleep, 0
  br i1 %needed, label %wake, label %done
wake:
  %syscall.at = getelementptr i8, ptr %pool, i64 512
  %syscall = load ptr, ptr %syscall.at
  %woken = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %pool, i64 138, i64 %limit, i64 0, i64 0, i64 1)
  %some = icmp sgt i64 %woken, 0
  br i1 %some, label %account, label %done
account: ; the waker takes the woken off the count, so that it does not call the kernel again for them
  %old = atomicrmw sub ptr %count.at, i64 %woken seq_cst, align 8
  br label %done
done:
  ret void
}

; Note the core that thread `thread` runs on; returns the core + 1, 0 if the kernel does not tell.
define internal i64 @note(ptr %pool, i64 %thread) nounwind {
  %core.at = alloca i64
  store i64 -1, ptr %core.at
  %syscall.at = getelementptr i8, ptr %pool, i64 512
  %syscall = load ptr, ptr %syscall.at
  %r = call i64 (i64, ...) %syscall(i64 $GETCPU, ptr %core.at, i64 0, i64 0)
  %core32 = load i32, ptr %core.at
  %core = zext i32 %core32 to i64
  %known = icmp eq i64 %r, 0
  %told = add i64 %core, 1
  %noted = select i1 %known, i64 %told, i64 0
  %line = mul i64 %thread, 128
  %offset = add i64 %line, 648
  %note.at = getelementptr i8, ptr %pool, i64 %offset
  store atomic i64 %noted, ptr %note.at monotonic, align 8
  ret i64 %noted
}

; Note this thread's core. A worker that shares it with another thread of the pool moves to an allowed one where none
; is, if there is one, and may then run anywhere again. The caller's thread is not ours to move.
define internal void @settle(ptr %pool, i64 %thread) nounwind noinline {
  %allowed = alloca [128 x i64], align 8
  %free = alloca [128 x i64], align 8
  %syscall.at = getelementptr i8, ptr %pool, i64 512
  %syscall = load ptr, ptr %syscall.at
  %threads.at = getelementptr i8, ptr %pool, i64 544
  %threads = load i64, ptr %threads.at
  %noted = call i64 @note(ptr %pool, i64 %thread)
  %caller = icmp eq i64 %thread, 0
  %unknown = icmp eq i64 %noted, 0
  %stay = or i1 %caller, %unknown
  br i1 %stay, label %return, label %ask
ask:
  %r1 = call i64 (i64, ...) %syscall(i64 $GETAFFINITY, i64 0, i64 1024, ptr %allowed)
  %r2 = call i64 (i64, ...) %syscall(i64 $GETAFFINITY, i64 0, i64 1024, ptr %free)
  %failed1 = icmp slt i64 %r1, 1
  %differ = icmp ne i64 %r1, %r2
  %failed = or i1 %failed1, %differ
  br i1 %failed, label %return, label %each
each: ; take the other threads' cores out of %free
  %t = phi i64 [ 0, %ask ], [ %t.next, %following ]
  %shared = phi i1 [ 0, %ask ], [ %shared.next, %following ]
  %line = mul i64 %t, 128
  %offset = add i64 %line, 648
  %note.at = getelementptr i8, ptr %pool, i64 %offset
  %theirs = load atomic i64, ptr %note.at monotonic, align 8
  %bit = sub i64 %theirs, 1
  %other = icmp ne i64 %t, %thread
  %listed = icmp ult i64 %bit, 8192
  %counts = and i1 %other, %listed
  br i1 %counts, label %remove, label %following
remove:
  %word = lshr i64 %bit, 6
  %word.at = getelementptr i64, ptr %free, i64 %word
  %old = load i64, ptr %word.at
  %inside = and i64 %bit, 63
  %one = shl i64 1, %inside
  %others = xor i64 %one, -1
  %new = and i64 %old, %others
  store i64 %new, ptr %word.at
  %same = icmp eq i64 %theirs, %noted
  br label %following
following:
  %here = phi i1 [ 0, %each ], [ %same, %remove ]
  %shared.next = or i1 %shared, %here
  %t.next = add i64 %t, 1
  %all = icmp eq i64 %t.next, %threads
  br i1 %all, label %decide, label %each
decide:
  br i1 %shared.next, label %move, label %return
move: ; an empty set is refused and changes nothing
  %r3 = call i64 (i64, ...) %syscall(i64 $SETAFFINITY, i64 0, i64 %r1, ptr %free)
  %refused = icmp ne i64 %r3, 0
  br i1 %refused, label %return, label %moved
moved:
  %r4 = call i64 (i64, ...) %syscall(i64 $SETAFFINITY, i64 0, i64 %r1, ptr %allowed)
  %now = call i64 @note(ptr %pool, i64 %thread)
  br label %return
return:
  ret void
}
""")
