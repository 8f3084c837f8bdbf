#pragma once

// What the CUDA kernels ask of the hardware, on the host: one fiber a thread, so that kernels run as they are
// written, barriers, warp exchanges, matrix instructions and asynchronous copies included. It shows whether a
// kernel calculates what it should and waits where it must; it says nothing about speed or about the order in
// which other blocks see memory. Blocks run one after the other.

#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
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

namespace lamina::attention::cuda::emulated {

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

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(96 * 1024);
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
  ucontext_t scheduler;
  std::function<void()> body;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_size = 0;
};

inline Machine machine;

inline Thread& self() { return *machine.threads[static_cast<std::size_t>(machine.current)]; }
inline int lane() { return machine.current % 32; }
inline WarpState& warp() { return machine.warps[static_cast<std::size_t>(machine.current / 32)]; }

// AddressSanitizer has to be told that the stack changes.
inline void leave([[maybe_unused]] void** fake, [[maybe_unused]] const void* stack,
                  [[maybe_unused]] std::size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake, stack, size);
#endif
}
inline void enter([[maybe_unused]] void* fake, [[maybe_unused]] const void** stack,
                  [[maybe_unused]] std::size_t* size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, stack, size);
#endif
}

inline void yield() {
  void* fake = nullptr;
  Thread& thread = self();
  leave(&fake, machine.scheduler_stack, machine.scheduler_stack_size);
  swapcontext(&thread.context, &machine.scheduler);
  enter(fake, &machine.scheduler_stack, &machine.scheduler_stack_size);
}

inline void start() {
  enter(nullptr, &machine.scheduler_stack, &machine.scheduler_stack_size);
  machine.body();
  self().done = true;
  leave(nullptr, machine.scheduler_stack, machine.scheduler_stack_size);
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
  void* fake = nullptr;
  leave(&fake, thread.stack.data(), thread.stack.size());
  swapcontext(&machine.scheduler, &thread.context);
  enter(fake, nullptr, nullptr);
  return true;
}

inline void run_block() {
  for (auto& thread : machine.threads) {
    thread->done = false;
    thread->waits_at = nullptr;
    thread->groups.clear();
    thread->open.clear();
    getcontext(&thread->context);
    thread->context.uc_stack.ss_sp = thread->stack.data();
    thread->context.uc_stack.ss_size = thread->stack.size();
    thread->context.uc_link = &machine.scheduler;
    makecontext(&thread->context, start, 0);
  }
  machine.warps.assign(static_cast<std::size_t>(machine.count / 32), {});
  machine.block = {};
  std::memset(machine.shared.get(), 0xff, machine.shared_bytes);  // all NaN: nobody may count on zeros
  // Warps take turns of random length, so that one may be far ahead of another where no barrier holds it.
  const auto warps = static_cast<unsigned>(machine.count / 32);
  for (int idle = 0; idle < 1000; ++idle) {
    const int first = static_cast<int>(machine.random() % warps) * 32;
    bool moves = true;
    for (unsigned rounds = machine.random() % 2 == 0 ? 1 : 1000; moves && rounds > 0; --rounds) {
      moves = false;
      for (machine.current = first; machine.current < first + 32; ++machine.current) moves |= resume();
      if (moves) idle = 0;
    }
  }
  // Who has not come to the end waits at a barrier that others have passed by.
  for (const auto& thread : machine.threads) {
    if (!thread->done) std::abort();
  }
}

// kernel<<<{x, y}, threads, shared_bytes>>>(args)
template <typename Kernel, typename Args>
void launch(Kernel kernel, int x, int y, int threads, std::size_t shared_bytes, const Args& args) {
  machine.count = threads;
  while (static_cast<int>(machine.threads.size()) < threads)
    machine.threads.push_back(std::make_unique<Thread>());
  machine.threads.resize(static_cast<std::size_t>(threads));
  machine.shared.reset(static_cast<char*>(::operator new[](shared_bytes + 1, std::align_val_t(128))));
  machine.shared_bytes = shared_bytes;
  machine.blocks_x = x;
  machine.blocks_y = y;
  machine.body = [&] { kernel(args); };
  for (machine.block_y = 0; machine.block_y < y; ++machine.block_y) {
    for (machine.block_x = 0; machine.block_x < x; ++machine.block_x) run_block();
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

inline void carry_out(const Copy& copy) {
  if (copy.wanted) {
    std::memcpy(copy.to, copy.from, 16);
  } else {
    std::memset(copy.to, 0, 16);
  }
}

inline float half_to_float(std::uint16_t bits) {
  _Float16 value;
  std::memcpy(&value, &bits, 2);
  return static_cast<float>(value);
}
inline std::uint16_t float_to_half(float value) {
  const auto half = static_cast<_Float16>(value);
  std::uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
inline float bf16_to_float(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
inline std::uint16_t float_to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
}

// d[16x8] += a[16x16] b[16x8] with the lanes holding what the instruction set's tables say.
template <typename ToFloat>
void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], ToFloat to_float) {
  const std::uint32_t own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const auto* const all = exchange(own, 6);
  const auto half_of = [&](std::uint32_t pair, int i) {
    return to_float(static_cast<std::uint16_t>(i == 0 ? pair : pair >> 16));
  };
  for (int i = 0; i < 4; ++i) {
    const int row = lane() / 4 + (i / 2) * 8;
    const int column = (lane() % 4) * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const float left = half_of(all[(row % 8) * 4 + (k % 8) / 2][row / 8 + (k / 8) * 2], k % 2);
      const float right = half_of(all[column * 4 + (k % 8) / 2][4 + k / 8], k % 2);
      d[i] += left * right;
    }
  }
}

inline void matrices(std::uint32_t (&r)[4], const void* address, bool transposed) {
  std::uint32_t own[2];
  std::memcpy(own, &address, 8);
  const auto* const all = exchange(own, 2);
  for (int m = 0; m < 4; ++m) {
    std::uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const int row = transposed ? (lane() % 4) * 2 + i : lane() / 4;
      const int column = transposed ? lane() / 4 : (lane() % 4) * 2 + i;
      const char* from;
      std::memcpy(&from, all[m * 8 + row], 8);
      std::memcpy(&pair[i], from + column * 2, 2);
    }
    std::memcpy(&r[m], pair, 4);
  }
}

}  // namespace lamina::attention::cuda::emulated

namespace lamina::attention::cuda {

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

inline void copy_async_16(void* shared, const void* global, bool wanted) {
  const emulated::Copy copy{shared, global, wanted};
  if (emulated::machine.copies == emulated::Copies::kAtOnce) {
    emulated::carry_out(copy);
  } else {
    emulated::self().open.push_back(copy);
  }
}
inline void commit_async() {
  emulated::self().groups.push_back(std::move(emulated::self().open));
  emulated::self().open.clear();
}
template <int kPending>
void wait_async() {
  auto& groups = emulated::self().groups;
  while (groups.size() > kPending) {
    for (const emulated::Copy& copy : groups.front()) emulated::carry_out(copy);
    groups.erase(groups.begin());
  }
}

inline void load_matrices(std::uint32_t (&r)[4], const void* shared) { emulated::matrices(r, shared, false); }
inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* shared) {
  emulated::matrices(r, shared, true);
}
inline std::uint32_t transpose_8x8(std::uint32_t pair) {
  const auto* const all = emulated::exchange(&pair, 1);
  std::uint32_t transposed = 0;
  for (int i = 0; i < 2; ++i) {
    const int row = (emulated::lane() % 4) * 2 + i;
    const int column = emulated::lane() / 4;
    const std::uint32_t held = all[row * 4 + column / 2][0];
    transposed |= ((column % 2 == 0 ? held : held >> 16) & 0xffffu) << (16 * i);
  }
  return transposed;
}
inline void multiply_add_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  emulated::multiply_add(d, a, b, emulated::bf16_to_float);
}
inline void multiply_add_f16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  emulated::multiply_add(d, a, b, emulated::half_to_float);
}
inline std::uint32_t pack_bf16(float low, float high) {
  return emulated::float_to_bf16(low) | static_cast<std::uint32_t>(emulated::float_to_bf16(high)) << 16;
}
inline std::uint32_t pack_f16(float low, float high) {
  return emulated::float_to_half(low) | static_cast<std::uint32_t>(emulated::float_to_half(high)) << 16;
}
inline float float_of_f16(std::uint16_t bits) { return emulated::half_to_float(bits); }
inline float float_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline std::int32_t count_acq_rel_gpu(std::int32_t* counter) { return (*counter)++; }
inline float load_l2(const float* global) { return *global; }

}  // namespace lamina::attention::cuda
