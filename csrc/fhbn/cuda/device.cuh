#pragma once

#include <cstdint>

#include "cuda/device.cuh"

// What the channel's kernels ask of the memory that they share with a peer, each named for what it orders.
// "sys": among all threads of this device, of others and of the host. Nothing else in this folder contains
// PTX.
namespace lamina::fhbn::cuda {

using namespace lamina::cuda;

struct alignas(16) Chunk {
  std::uint32_t words[4];
};

}  // namespace lamina::fhbn::cuda

#ifndef __CUDACC__
#include "cuda_emulation_channel.hpp"
#else

namespace lamina::fhbn::cuda {

// What was written before the value that is read here was released is seen after.
LAMINA_DEVICE std::uint64_t load_acquire_sys(const std::uint64_t* shared) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(shared) : "memory");
  return value;
}
LAMINA_DEVICE std::uint32_t load_acquire_sys(const std::uint32_t* shared) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(shared) : "memory");
  return value;
}

// Read once, whole, from where others may write meanwhile; orders nothing, so that many can be under way.
LAMINA_DEVICE std::uint64_t load_relaxed_sys(const std::uint64_t* shared) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(shared));
  return value;
}

// For looks that are repeated until something changes. An acquire would drop the multiprocessor's L1 with
// each of them, under others that compute there: it comes once, after the last.
LAMINA_DEVICE std::uint64_t look_sys(const std::uint64_t* shared) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(shared) : "memory");
  return value;
}

// A thread that acquires the value sees all that this thread wrote before, and what it had seen of others'
// writes; and all that this thread read before was read.
LAMINA_DEVICE void store_release_sys(std::uint64_t* shared, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(shared), "l"(value) : "memory");
}
LAMINA_DEVICE void store_release_sys(std::uint32_t* shared, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(shared), "r"(value) : "memory");
}

// Adds one; what this block wrote and read before (behind a barrier) comes before what follows wherever the
// sum is seen.
LAMINA_DEVICE std::int32_t count_acq_rel_sys(std::int32_t* counter) {
  std::int32_t before;
  asm volatile("atom.add.acq_rel.sys.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Everything before it, of other threads too if a barrier stood between, comes before everything behind it.
LAMINA_DEVICE void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Among this device's own threads, in its own memory.
LAMINA_DEVICE std::uint32_t load_acquire_gpu(const std::uint32_t* own) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(own) : "memory");
  return value;
}
LAMINA_DEVICE std::uint32_t look_gpu(const std::uint32_t* own) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(own) : "memory");
  return value;
}
LAMINA_DEVICE void store_release_gpu(std::uint32_t* own, std::uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(own), "r"(value) : "memory");
}
// Adds one; orders nothing.
LAMINA_DEVICE std::int32_t count_relaxed_gpu(std::int32_t* counter) {
  std::int32_t before;
  asm volatile("atom.add.relaxed.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// What is read or written once, and need not stay in any cache.
LAMINA_DEVICE Chunk load_once(const Chunk* global) {
  Chunk chunk;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.words[0]), "=r"(chunk.words[1]), "=r"(chunk.words[2]), "=r"(chunk.words[3])
               : "l"(global)
               : "memory");
  return chunk;
}
LAMINA_DEVICE void store_once(Chunk* global, const Chunk& chunk) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(chunk.words[0]),
               "r"(chunk.words[1]), "r"(chunk.words[2]), "r"(chunk.words[3])
               : "memory");
}

// Weak, so that neighbours of a warp may leave the device as one write.
LAMINA_DEVICE void store_together(Chunk* global, const Chunk& chunk) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(chunk.words[0]),
               "r"(chunk.words[1]), "r"(chunk.words[2]), "r"(chunk.words[3])
               : "memory");
}

// Nanoseconds of a clock that all multiprocessors share; it may move in steps of a microsecond.
LAMINA_DEVICE std::uint64_t global_timer() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

}  // namespace lamina::fhbn::cuda
#endif
