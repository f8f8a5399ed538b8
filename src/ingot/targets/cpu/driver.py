"""The driver: LLVM IR, compiled into every blob, that runs a model's steps on the caller and its workers.

    run(ctx):  for step in ctx.steps:  for round in step.rounds:
                   for chunk in parallel(step.chunks):  step.kernel(bases, args, round * chunks + chunk, scratch)

One word of the pool, `next`, carries the whole protocol:

    bit 63          31 bits                     32 bits
    [ run is over | chunks not yet claimed    | tag, +1 per published round ]

- **claim**: compare-and-swap `next` to one chunk less. The tag makes a late thread's swap fail, so it can
  neither take a chunk of another step nor of another run; it reads nothing but pool memory until it holds a
  chunk, and while it holds one its step, and so its context, cannot end.
- **advance**: whoever finishes the last chunk of a round (`done` falls to 0) owns the run: it publishes the next
  round of the step or the next step, or runs rounds of one chunk itself on the way. No thread waits for one that
  holds no chunk, so a preempted or sleeping worker costs its help and nothing else. With no worker at all the caller
  does it alone.
- **wait**: spin for `spin` ticks, then sleep on a futex (the tag half of `next`). A sleeper announces itself
  before the kernel compares the tag, and the publisher changes the tag before it looks for sleepers, so no
  wake-up is lost (Dekker's pattern; both sides sequentially consistent).

Memory of the caller (`runtime/pool.py` and `runtime/bind.py` lay it out; all fields are 8 bytes):

    ctx:   0 pool (0: run alone)  8 bases  16 steps  24 step count  32 scratch  40 scratch bytes per thread
           48 profile: step count + 1 clock readings, or 0
    step:  0 kernel  8 args  16 chunk count of a round (< 2**31)  24 rounds
           a jump:  8 where its flag is: index into bases, byte offset  16 step to go on at  24 -1: if the flag, a byte,
           is 0; -2: always
    pool:  0 next  128 done  256 sleeping workers  264 caller sleeps  384 ctx  392 step at hand  400 its record
           408 its next round
           416 first chunk of the published round
           512 syscall  520 spin ticks  528 workers joined  536 stop
"""

from __future__ import annotations

from ingot.support.errors import CompileError

ENTRY_RUN = "ingot_run"
ENTRY_WORKER = "ingot_worker"
ENTRY_STOP = "ingot_stop"
ENTRY_CLOCK = "ingot_clock"

# Per architecture: the futex system call's number, the spin hint, and a constant-rate tick counter readable in user
# mode (llvm.readcyclecounter reads PMCCNTR_EL0 on AArch64, which traps). Intrinsics, not inline assembly: llvmlite has
# no assembly parser for foreign targets.
_FUTEX = {"x86_64": "202", "aarch64": "98"}
_PAUSE = {"x86_64": "call void @llvm.x86.sse2.pause()", "aarch64": "call void @llvm.aarch64.isb(i32 15)"}
_CLOCK = {
    "x86_64": "%now = call i64 @llvm.readcyclecounter()",
    "aarch64": "%now = call i64 @llvm.read_volatile_register.i64(metadata !0)",
}
_DECLARE = {
    "x86_64": "declare i64 @llvm.readcyclecounter()\ndeclare void @llvm.x86.sse2.pause()",
    "aarch64": "declare i64 @llvm.read_volatile_register.i64(metadata)\ndeclare void @llvm.aarch64.isb(i32)\n"
    '!0 = !{!"cntvct_el0"}',
}


def driver_ir(arch: str) -> str:
    """The driver's LLVM IR text for "x86_64" or "aarch64" on Linux."""
    if arch not in _FUTEX:
        raise CompileError("CPU driver", expected=f"one of {sorted(_FUTEX)}", got=arch)
    text = _TEMPLATE.replace("$DECLARE", _DECLARE[arch]).replace("$FUTEX", _FUTEX[arch])
    return text.replace("$PAUSE", _PAUSE[arch]).replace("$CLOCK", _CLOCK[arch])


# 137 = FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 138 = FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG (futex(2)).
# Bit 1 wakes workers, bit 2 the caller.
_TEMPLATE = """
$DECLARE

define i64 @ingot_clock() nounwind {
  $CLOCK
  ret i64 %now
}

define internal void @kernel(ptr %ctx, ptr %step, i64 %chunk, i64 %thread) nounwind alwaysinline {
  %code = load ptr, ptr %step
  %args.at = getelementptr i8, ptr %step, i64 8
  %args = load ptr, ptr %args.at
  %bases.at = getelementptr i8, ptr %ctx, i64 8
  %bases = load ptr, ptr %bases.at
  %scratch.at = getelementptr i8, ptr %ctx, i64 32
  %scratch.all = load ptr, ptr %scratch.at
  %stride.at = getelementptr i8, ptr %ctx, i64 40
  %stride = load i64, ptr %stride.at
  %mine = mul i64 %stride, %thread
  %scratch = getelementptr i8, ptr %scratch.all, i64 %mine
  call void %code(ptr %bases, ptr %args, i64 %chunk, ptr %scratch)
  ret void
}

define internal void @record(ptr %ctx, i64 %step) nounwind alwaysinline {
  %profile.at = getelementptr i8, ptr %ctx, i64 48
  %profile = load ptr, ptr %profile.at
  %off = icmp eq ptr %profile, null
  br i1 %off, label %done, label %write
write:
  %now = call i64 @ingot_clock()
  %cell = getelementptr i64, ptr %profile, i64 %step
  store i64 %now, ptr %cell
  br label %done
done:
  ret void
}

; Where to go on after the jump at `step`, which `next` follows.
define internal i64 @jump(ptr %ctx, ptr %step, i64 %next) nounwind alwaysinline {
  %target.at = getelementptr i8, ptr %step, i64 16
  %target = load i64, ptr %target.at
  %kind.at = getelementptr i8, ptr %step, i64 24
  %kind = load i64, ptr %kind.at
  %always = icmp eq i64 %kind, -2
  br i1 %always, label %go, label %test
go:
  ret i64 %target
test:
  %args.at = getelementptr i8, ptr %step, i64 8
  %args = load ptr, ptr %args.at
  %which = load i64, ptr %args
  %offset.at = getelementptr i8, ptr %args, i64 8
  %offset = load i64, ptr %offset.at
  %bases.at = getelementptr i8, ptr %ctx, i64 8
  %bases = load ptr, ptr %bases.at
  %base.at = getelementptr ptr, ptr %bases, i64 %which
  %base = load ptr, ptr %base.at
  %flag.at = getelementptr i8, ptr %base, i64 %offset
  %flag = load i8, ptr %flag.at
  %set = icmp ne i8 %flag, 0
  %to = select i1 %set, i64 %next, i64 %target
  ret i64 %to
}

define internal void @alone(ptr %ctx) nounwind {
  %steps.at = getelementptr i8, ptr %ctx, i64 16
  %steps = load ptr, ptr %steps.at
  %count.at = getelementptr i8, ptr %ctx, i64 24
  %count = load i64, ptr %count.at
  br label %step
step:
  %i = phi i64 [ 0, %0 ], [ %i.next, %next ], [ %to, %jump ]
  call void @record(ptr %ctx, i64 %i)
  %i.next = add i64 %i, 1
  %end = icmp eq i64 %i, %count
  br i1 %end, label %over, label %first
first:
  %here = mul i64 %i, 32
  %at = getelementptr i8, ptr %steps, i64 %here
  %chunks.at = getelementptr i8, ptr %at, i64 16
  %each = load i64, ptr %chunks.at
  %rounds.at = getelementptr i8, ptr %at, i64 24
  %rounds = load i64, ptr %rounds.at
  %chunks = mul i64 %each, %rounds
  %is.jump = icmp slt i64 %rounds, 0
  br i1 %is.jump, label %jump, label %ready
jump:
  %to = call i64 @jump(ptr %ctx, ptr %at, i64 %i.next)
  br label %step
ready:
  br label %chunk
chunk:
  %c = phi i64 [ 0, %ready ], [ %c.next, %body ]
  %all = icmp eq i64 %c, %chunks
  br i1 %all, label %next, label %body
body:
  call void @kernel(ptr %ctx, ptr %at, i64 %c, i64 0)
  %c.next = add i64 %c, 1
  br label %chunk
next:
  br label %step
over:
  ret void
}

define internal void @wake.caller(ptr %pool) nounwind {
  %flag = getelementptr i8, ptr %pool, i64 264
  %asleep = load atomic i64, ptr %flag seq_cst, align 8
  %needed = icmp ne i64 %asleep, 0
  br i1 %needed, label %wake, label %done
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

; Called by the only thread in the run that holds work: publish the next round of several chunks, or end the run.
define internal void @advance(ptr %pool, i64 %thread) nounwind {
  %ctx.at = getelementptr i8, ptr %pool, i64 384
  %ctx = load ptr, ptr %ctx.at
  %index.at = getelementptr i8, ptr %pool, i64 392
  %index = load i64, ptr %index.at
  %round.at = getelementptr i8, ptr %pool, i64 408
  %again = load i64, ptr %round.at
  %first.at = getelementptr i8, ptr %pool, i64 416
  %steps.at = getelementptr i8, ptr %ctx, i64 16
  %steps = load ptr, ptr %steps.at
  %count.at = getelementptr i8, ptr %ctx, i64 24
  %count = load i64, ptr %count.at
  br label %step
step:
  %i = phi i64 [ %index, %0 ], [ %i.next, %next ], [ %i, %body ], [ %to, %jump ]
  %round = phi i64 [ %again, %0 ], [ 0, %next ], [ %round.next, %body ], [ 0, %jump ]
  %fresh = icmp eq i64 %round, 0
  br i1 %fresh, label %enter, label %look
enter:
  call void @record(ptr %ctx, i64 %i)
  %end = icmp eq i64 %i, %count
  br i1 %end, label %over, label %look
look:
  %i.next = add i64 %i, 1
  %round.next = add i64 %round, 1
  %here = mul i64 %i, 32
  %at = getelementptr i8, ptr %steps, i64 %here
  %chunks.at = getelementptr i8, ptr %at, i64 16
  %chunks = load i64, ptr %chunks.at
  %rounds.at = getelementptr i8, ptr %at, i64 24
  %rounds = load i64, ptr %rounds.at
  %is.jump = icmp slt i64 %rounds, 0
  br i1 %is.jump, label %jump, label %ready
jump:
  %to = call i64 @jump(ptr %ctx, ptr %at, i64 %i.next)
  br label %step
ready:
  %more = icmp slt i64 %round, %rounds
  br i1 %more, label %some, label %next
some:
  %several = icmp ugt i64 %chunks, 1
  br i1 %several, label %publish, label %few
few:
  %one = icmp eq i64 %chunks, 1
  br i1 %one, label %body, label %next
body:
  call void @kernel(ptr %ctx, ptr %at, i64 %round, i64 %thread)
  br label %step
next:
  br label %step
publish:
  store i64 %i, ptr %index.at
  store i64 %round.next, ptr %round.at
  %first = mul i64 %round, %chunks
  store i64 %first, ptr %first.at
  %current.at = getelementptr i8, ptr %pool, i64 400
  store ptr %at, ptr %current.at
  %done.at = getelementptr i8, ptr %pool, i64 128
  store atomic i64 %chunks, ptr %done.at monotonic, align 8
  %old = load atomic i64, ptr %pool monotonic, align 8
  %old.next = add i64 %old, 1
  %tag = and i64 %old.next, 4294967295
  %high = shl i64 %chunks, 32
  %new = or i64 %high, %tag
  store atomic i64 %new, ptr %pool seq_cst, align 8
  %others = sub i64 %chunks, 1
  call void @wake.workers(ptr %pool, i64 %others)
  call void @wake.caller(ptr %pool)
  ret void
over:
  %last = load atomic i64, ptr %pool monotonic, align 8
  %unpublished = icmp slt i64 %last, 0
  br i1 %unpublished, label %return, label %finish
finish: ; from this store on the caller may return and start another run: touch only the pool's sleepers
  %last.next = add i64 %last, 1
  %last.tag = and i64 %last.next, 4294967295
  %final = or i64 %last.tag, -9223372036854775808
  store atomic i64 %final, ptr %pool seq_cst, align 8
  call void @wake.caller(ptr %pool)
  br label %return
return:
  ret void
}

; Claim and run chunks; the caller (thread 0) leaves when the run is over, a worker when the pool stops.
define internal void @take.part(ptr %pool, i64 %thread) nounwind {
  %done.at = getelementptr i8, ptr %pool, i64 128
  %asleep.at = getelementptr i8, ptr %pool, i64 256
  %caller.at = getelementptr i8, ptr %pool, i64 264
  %ctx.at = getelementptr i8, ptr %pool, i64 384
  %current.at = getelementptr i8, ptr %pool, i64 400
  %first.at = getelementptr i8, ptr %pool, i64 416
  %syscall.at = getelementptr i8, ptr %pool, i64 512
  %syscall = load ptr, ptr %syscall.at
  %spin.at = getelementptr i8, ptr %pool, i64 520
  %spin = load i64, ptr %spin.at
  %stop.at = getelementptr i8, ptr %pool, i64 536
  %caller = icmp eq i64 %thread, 0
  br label %look
look:
  %since = phi i64 [ 0, %0 ], [ 0, %finished ], [ 0, %last ], [ %since, %claim ], [ %from, %pause ], [ 0, %woken ]
  %v = load atomic i64, ptr %pool acquire, align 8
  %over = icmp slt i64 %v, 0
  %left = lshr i64 %v, 32
  %none = icmp eq i64 %left, 0
  %idle = or i1 %over, %none
  br i1 %idle, label %wait, label %claim
claim:
  %less = sub i64 %v, 4294967296
  %swap = cmpxchg ptr %pool, i64 %v, i64 %less acq_rel monotonic, align 8
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %work, label %look
work:
  %ctx = load ptr, ptr %ctx.at
  %step = load ptr, ptr %current.at
  %chunks.at = getelementptr i8, ptr %step, i64 16
  %chunks = load i64, ptr %chunks.at
  %first = load i64, ptr %first.at
  %past = sub i64 %chunks, %left
  %chunk = add i64 %first, %past
  call void @kernel(ptr %ctx, ptr %step, i64 %chunk, i64 %thread)
  br label %finished.chunk
finished.chunk:
  %before = atomicrmw sub ptr %done.at, i64 1 acq_rel, align 8
  %was.last = icmp eq i64 %before, 1
  br i1 %was.last, label %last, label %finished
finished:
  br label %look
last:
  call void @advance(ptr %pool, i64 %thread)
  br label %look
wait:
  br i1 %caller, label %wait.caller, label %wait.worker
wait.caller:
  br i1 %over, label %return, label %spin.check
wait.worker:
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %return, label %spin.check
spin.check:
  %now = call i64 @ingot_clock()
  %fresh = icmp eq i64 %since, 0
  %from = select i1 %fresh, i64 %now, i64 %since
  %spent = sub i64 %now, %from
  %tired = icmp ugt i64 %spent, %spin
  br i1 %tired, label %sleep, label %pause
pause:
  $PAUSE
  br label %look
sleep:
  %seen = and i64 %v, 4294967295
  br i1 %caller, label %sleep.caller, label %sleep.worker
sleep.caller:
  store atomic i64 1, ptr %caller.at seq_cst, align 8
  %r1 = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %pool, i64 137, i64 %seen, i64 0, i64 0, i64 2)
  store atomic i64 0, ptr %caller.at seq_cst, align 8
  br label %woken
sleep.worker:
  %a = atomicrmw add ptr %asleep.at, i64 1 seq_cst, align 8
  %stop2 = load atomic i64, ptr %stop.at seq_cst, align 8
  %stopped2 = icmp ne i64 %stop2, 0
  br i1 %stopped2, label %forget, label %sleep.now
sleep.now:
  %r2 = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %pool, i64 137, i64 %seen, i64 0, i64 0, i64 1)
  %waited = icmp eq i64 %r2, 0
  br i1 %waited, label %woken, label %forget
forget: ; nobody woke us (the tag had moved, or a signal came), so nobody took us off the count
  %b = atomicrmw sub ptr %asleep.at, i64 1 seq_cst, align 8
  br label %woken
woken:
  br label %look
return:
  ret void
}

define void @ingot_run(ptr %ctx) nounwind {
  %pool = load ptr, ptr %ctx
  %single = icmp eq ptr %pool, null
  br i1 %single, label %serial, label %parallel
serial:
  call void @alone(ptr %ctx)
  ret void
parallel:
  %ctx.at = getelementptr i8, ptr %pool, i64 384
  store ptr %ctx, ptr %ctx.at
  %index.at = getelementptr i8, ptr %pool, i64 392
  store i64 0, ptr %index.at
  %round.at = getelementptr i8, ptr %pool, i64 408
  store i64 0, ptr %round.at
  call void @advance(ptr %pool, i64 0)
  call void @take.part(ptr %pool, i64 0)
  ret void
}

define void @ingot_worker(ptr %pool) nounwind {
  %joined.at = getelementptr i8, ptr %pool, i64 528
  %before = atomicrmw add ptr %joined.at, i64 1 seq_cst, align 8
  %thread = add i64 %before, 1
  call void @take.part(ptr %pool, i64 %thread)
  ret void
}

; Send the workers home. The tag moves so that one about to sleep sees it; no run may be under way.
define void @ingot_stop(ptr %pool) nounwind {
  %stop.at = getelementptr i8, ptr %pool, i64 536
  store atomic i64 1, ptr %stop.at seq_cst, align 8
  %old = load atomic i64, ptr %pool monotonic, align 8
  %next = add i64 %old, 1
  %tag = and i64 %next, 4294967295
  %new = or i64 %tag, -9223372036854775808
  store atomic i64 %new, ptr %pool seq_cst, align 8
  call void @wake.workers(ptr %pool, i64 2147483647)
  ret void
}
"""
