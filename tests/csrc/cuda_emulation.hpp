#pragma once

// What the CUDA kernels ask of the hardware, on the host: one fiber a thread, so that kernels run as they are
// written, barriers and warp exchanges included. It shows whether a kernel calculates what it should and
// waits where it must; it says nothing about speed or about the order in which other blocks see memory.
// Blocks run one after the other. A thread of the host that launches has a machine of its own, so that
// kernels of several streams run side by side: a stream is a thread.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define LAMINA_DEVICE inline
#define LAMINA_UNROLL
#define LAMINA_UNROLL_4
#define LAMINA_UNROLL_1
#define LAMINA_KERNEL(threads) inline void
#define LAMINA_KERNEL_SHARING(threads, blocks) inline void

namespace lamina::cuda::emulated {

// When a copy's bytes arrive: both are allowed, so both must do.
enum class Copies { kAtOnce, kWhenAwaited };

struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
};

// Where the lanes of a warp leave what the others need. Two, used in turn: one barrier per exchange is
// enough.
struct WarpState {
  Barrier barrier;
  std::uint32_t words[2][32][8];
  int turn[32] = {};
};

struct Copy {
  void* to;
  const void* from;
  bool wanted;
};

// Where a thread of the host can be: on its own stack, or on a fiber's. AddressSanitizer is told of each
// change. ThreadSanitizer is not: a fiber would be one more thread to it, which a thousand of make ten times
// as slow. What a thread of the host runs is one thread to it, and rightly. In its reports the callers up to
// the kernel are to be believed, and none above that.
struct Stack {
  ucontext_t context;
  jmp_buf left;  // where it was left, if it was
  bool was_left = false;
  const void* memory = nullptr;
  std::size_t bytes = 0;
};

// On a stack again, or for the first time, having come from another one.
inline void arrive([[maybe_unused]] void* fake, [[maybe_unused]] Stack& from) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, &from.memory, &from.bytes);
#endif
}

// Kernels are mostly this. So not by swapcontext(), which asks the system each time, for the mask of signals;
// but sanitizers know nothing else.
inline void go(Stack& from, Stack& to) {
  void* fake = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake, to.memory, to.bytes);
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  swapcontext(&from.context, &to.context);
#else
  from.was_left = true;
  if (_setjmp(from.left) == 0) {
    if (to.was_left) _longjmp(to.left, 1);
    setcontext(&to.context);
  }
#endif
  arrive(fake, to);
}

void start();

// Made once: it runs one kernel after the other.
struct Fiber : Stack {
  Fiber() {
    getcontext(&context);
    context.uc_stack.ss_sp = room.data();
    context.uc_stack.ss_size = room.size();
    makecontext(&context, start, 0);
    memory = room.data();
    bytes = room.size();
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  std::vector<char> room = std::vector<char>(96 * 1024);
};

struct Thread {
  Fiber fiber;
  bool done = false;
  const Barrier* waits_at = nullptr;
  unsigned generation = 0;
  std::vector<std::vector<Copy>> groups;  // of copies, closed
  std::vector<Copy> open;
};

struct FreeAligned {
  void operator()(char* memory) const { ::operator delete[](memory, std::align_val_t(128)); }
};

struct Machine {
  Copies copies = Copies::kAtOnce;
  int blocks_x = 1, blocks_y = 1, block_x = 0, block_y = 0;
  int count = 0;
  int current = 0;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<WarpState> warps;
  Barrier block;
  std::unique_ptr<char[], FreeAligned> shared;
  std::size_t shared_bytes = 0;
  std::minstd_rand random;
  Stack scheduler;
  std::function<void()> body;
};

// On the heap: a library loaded at run time gets a few hundred bytes of initial-exec thread-local storage,
// and fewer where sanitizers are preloaded.
inline thread_local const std::unique_ptr<Machine> owned_machine = std::make_unique<Machine>();
inline thread_local Machine& machine = *owned_machine;

inline Thread& self() { return *machine.threads[static_cast<std::size_t>(machine.current)]; }
inline int lane() { return machine.current % 32; }
inline WarpState& warp() { return machine.warps[static_cast<std::size_t>(machine.current / 32)]; }

inline void yield() { go(self().fiber, machine.scheduler); }

inline void start() {
  arrive(nullptr, machine.scheduler);
  while (true) {
    machine.body();
    self().done = true;
    yield();
  }
}

inline void meet(Barrier& barrier, int expected) {
  if (++barrier.arrived == expected) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  self().waits_at = &barrier;
  self().generation = barrier.generation;
  yield();
}

// Lets the current thread run until it waits or ends; false if it has ended or still waits.
inline bool resume() {
  Thread& thread = self();
  if (thread.done) return false;
  if (thread.waits_at != nullptr && thread.waits_at->generation == thread.generation) return false;
  thread.waits_at = nullptr;
  go(machine.scheduler, thread.fiber);
  return true;
}

inline void run_block() {
  // There may be more, from a larger block before.
  const std::span threads(machine.threads.data(), static_cast<std::size_t>(machine.count));
  for (auto& thread : threads) {
    thread->done = false;
    thread->waits_at = nullptr;
    thread->groups.clear();
    thread->open.clear();
  }
  const auto warps = static_cast<unsigned>(machine.count + 31) / 32;
  machine.warps.assign(static_cast<std::size_t>(warps), {});
  machine.block = {};
  std::memset(machine.shared.get(), 0xff, machine.shared_bytes);  // all NaN: nobody may count on zeros
  // Warps take turns of random length, so that one may be far ahead of another where no barrier holds it.
  for (int idle = 0; idle < 1000; ++idle) {
    const int first = static_cast<int>(machine.random() % warps) * 32;
    bool moves = true;
    for (unsigned rounds = machine.random() % 2 == 0 ? 1 : 1000; moves && rounds > 0; --rounds) {
      moves = false;
      const int end = std::min(first + 32, machine.count);
      for (machine.current = first; machine.current < end; ++machine.current) moves |= resume();
      if (moves) idle = 0;
    }
  }
  // Who has not come to the end waits at a barrier that others have passed by.
  for (const auto& thread : threads) {
    if (!thread->done) std::abort();
  }
}

// kernel<<<{x, y}, threads, shared_bytes>>>(args)
template <typename Kernel, typename Args>
void launch(Kernel kernel, int x, int y, int threads, std::size_t shared_bytes, const Args& args) {
  machine.count = threads;
  while (static_cast<int>(machine.threads.size()) < threads)
    machine.threads.push_back(std::make_unique<Thread>());
  machine.shared.reset(static_cast<char*>(::operator new[](shared_bytes + 1, std::align_val_t(128))));
  machine.shared_bytes = shared_bytes;
  machine.blocks_x = x;
  machine.blocks_y = y;
  machine.body = [&] { kernel(args); };
  // No block is the first or the last by its number.
  const int blocks = x * y;
  const int first = static_cast<int>(machine.random() % static_cast<unsigned>(blocks));
  for (int i = 0; i < blocks; ++i) {
    machine.block_x = (first + i) % blocks % x;
    machine.block_y = (first + i) % blocks / x;
    run_block();
  }
}

// Every lane leaves `count` words; afterwards all can read everyone's.
inline const std::uint32_t (*exchange(const std::uint32_t* words, int count))[8] {
  WarpState& state = warp();
  const int turn = state.turn[lane()] ^= 1;
  std::memcpy(state.words[turn][lane()], words, static_cast<std::size_t>(count) * 4);
  meet(state.barrier, 32);
  return state.words[turn];
}

}  // namespace lamina::cuda::emulated

namespace lamina::cuda {

inline int thread_index() { return emulated::machine.current; }
inline int block_x() { return emulated::machine.block_x; }
inline int block_y() { return emulated::machine.block_y; }
inline int blocks_x() { return emulated::machine.blocks_x; }
inline int blocks_y() { return emulated::machine.blocks_y; }
inline char* shared_memory() { return emulated::machine.shared.get(); }
inline void sync_block() { emulated::meet(emulated::machine.block, emulated::machine.count); }
inline void sync_warp() { emulated::meet(emulated::warp().barrier, 32); }

template <typename T>
T shuffle(T value, int from_lane) {
  static_assert(sizeof(T) == 4);
  std::uint32_t word;
  std::memcpy(&word, &value, 4);
  std::memcpy(&value, &emulated::exchange(&word, 1)[from_lane % 32][0], 4);
  return value;
}
template <int kWidth, typename T>
T shuffle_within(T value, int from_lane) {
  return shuffle(value, emulated::lane() / kWidth * kWidth + from_lane % kWidth);
}
template <typename T>
T shuffle_xor(T value, int mask) {
  return shuffle(value, emulated::lane() ^ mask);
}

}  // namespace lamina::cuda
