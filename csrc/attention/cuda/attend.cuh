#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"
#include "attention/cuda/partition.hpp"
#include "attention/cuda/softmax.hpp"
#include "attention/cuda/tile.hpp"

namespace lamina::attention::cuda {

// What one launch is given; by value, so that a captured graph keeps it.
struct AttendArgs {
  const void* q;  // [requests][heads][head_dim]
  Rows rows;      // of KV head 0
  std::int64_t head_bytes;
  const std::int32_t* slots;
  std::int32_t heads;
  std::int32_t group;  // query heads of one KV head
  std::int32_t head_dim;
  std::int32_t value_dim;  // of a value and of what comes out
  Scoring scoring;
  // the plan
  const Plan* plan;
  const std::int32_t* first;  // [workers]: the request that a share begins in
  Requests requests;
  // parts of cut units
  std::int32_t* arrivals;
  float* part_lse;
  float* part_out;
  std::int64_t parts;  // of one pass
  // the partial
  float* out;  // [requests][heads][value_dim]
  float* lse;  // [requests][heads]
};

// Attention of every request's new query over its previous tokens. A block is one worker of the line
// (block_y) and one pass of kHeads of the group's heads (block_x, fastest, so that the passes of a stretch
// run together and all but the first find its bytes in L2; groups of up to 16 heads have one pass).
//
// Reader is how a block's threads read the tokens of a segment and what they calculate of them: read() leaves
// the heads' log-sum-exps in shared memory, and put() writes their outputs.
template <typename Reader>
class Attend {
public:
  static constexpr int kThreads = Reader::kThreads;
  static constexpr int kHeads = Reader::kHeads;
  static constexpr int kTokens = Reader::kTokens;  // of a tile on the line

  // Where the block's shared memory goes: the reader's, then one number a head and one for all.
  static constexpr int kSharedBytes = Reader::kSharedBytes + kHeads * 4 + 16;

  LAMINA_DEVICE explicit Attend(const AttendArgs& args)
      : args_(args),
        lse_(reinterpret_cast<float*>(shared_memory() + Reader::kSharedBytes)),
        last_(reinterpret_cast<std::int32_t*>(lse_ + kHeads)),
        first_head_(block_x() * kHeads),
        heads_(args.group - first_head_ < kHeads ? args.group - first_head_ : kHeads),
        reader_(args, heads_, lse_) {}

  LAMINA_DEVICE void run() {
    const std::int32_t worker = block_y();
    const Plan plan = *args_.plan;
    std::int32_t request = args_.first[worker];
    if (plan.empty > 0) fill_empty();
    if (worker >= plan.line.workers) return;
    const std::int64_t share_end = plan.line.share(worker + 1);
    for (std::int64_t at = plan.line.share(worker); at < share_end;) {
      const Segment segment = segment_at(plan.line, worker, at, args_.requests, request, kTokens);
      reader_.read(segment, head_row(segment));
      if (segment.parts == 1) {
        const std::int64_t row = head_row(segment);
        put(args_.out + row * args_.value_dim, args_.lse + row);
      } else {
        const std::int64_t row = part_row(segment.part(worker));
        put(args_.part_out + row * args_.value_dim, args_.part_lse + row);
        if (arrives_last(segment)) join(segment);
      }
      sync_block();  // shared memory is free again
      at = segment.end;
      request = segment.next_request;
    }
  }

private:
  // A request without visible tokens has no tile on the line.
  LAMINA_DEVICE void fill_empty() {
    for (int request = block_y(); request < args_.requests.count; request += blocks_y()) {
      if (args_.requests.begin[request] != args_.requests.end[request]) continue;
      for (int head = thread_index() + block_x() * kThreads; head < args_.heads;
           head += kThreads * blocks_x()) {
        args_.lse[static_cast<std::int64_t>(request) * args_.heads + head] = kNothing;
      }
      const int floats = args_.heads * args_.value_dim;
      for (int i = thread_index() + block_x() * kThreads; i < floats; i += kThreads * blocks_x()) {
        args_.out[static_cast<std::int64_t>(request) * floats + i] = 0;
      }
    }
  }

  LAMINA_DEVICE std::int64_t head_row(const Segment& segment) const {
    return static_cast<std::int64_t>(segment.request) * args_.heads + segment.kv_head * args_.group +
           first_head_;
  }

  LAMINA_DEVICE std::int64_t part_row(std::int64_t part) const {
    return (block_x() * args_.parts + part) * kHeads;
  }

  LAMINA_DEVICE void put(float* out, float* lse) const {
    if (thread_index() < heads_) lse[thread_index()] = lse_[thread_index()];
    reader_.put(out);
  }

  // Whether all other workers have left their parts of the unit; then they can be read. The counter is zero
  // again afterwards, for the next launch.
  LAMINA_DEVICE bool arrives_last(const Segment& segment) {
    sync_block();  // every thread has written its share of the part
    if (thread_index() == 0) {
      std::int32_t* const counter = args_.arrivals + block_x() * units() + segment.unit;
      *last_ = count_acq_rel_gpu(counter) == segment.parts - 1;
      if (*last_ != 0) *counter = 0;
    }
    sync_block();
    return *last_ != 0;
  }

  LAMINA_DEVICE std::int64_t units() const {
    return static_cast<std::int64_t>(args_.heads / args_.group) * args_.requests.count;
  }

  // Puts the unit together, always in the order of its workers: the result does not depend on which came
  // last.
  LAMINA_DEVICE void join(const Segment& segment) {
    const std::int64_t first = part_row(segment.part(segment.first_worker));
    if (thread_index() < heads_) {
      const float* const lse = args_.part_lse + first + thread_index();
      float max = kNothing;
      float sum = 0;
      for (int p = 0; p < segment.parts; ++p) {
        const float other = load_l2(lse + p * kHeads);
        max = max > other ? max : other;
      }
      for (int p = 0; p < segment.parts; ++p) sum += exp2_of((load_l2(lse + p * kHeads) - max) * kLog2E);
      lse_[thread_index()] = max + log_sum(0, sum);
    }
    sync_block();
    const std::int64_t row = head_row(segment);
    if (thread_index() < heads_) args_.lse[row + thread_index()] = lse_[thread_index()];
    for (int i = thread_index(); i < heads_ * args_.value_dim; i += kThreads) {
      const int head = i / args_.value_dim;
      const std::int64_t step = static_cast<std::int64_t>(kHeads) * args_.value_dim;
      const float* from = args_.part_out + first * args_.value_dim + i;
      float sum = 0;
      LAMINA_UNROLL_4
      for (int p = 0; p < segment.parts; ++p) {
        const float weight =
            exp2_of((load_l2(args_.part_lse + first + p * kHeads + head) - lse_[head]) * kLog2E);
        sum += weight * load_l2(from + p * step);
      }
      args_.out[row * args_.value_dim + i] = sum;
    }
  }

  const AttendArgs& args_;
  float* const lse_;  // [head]
  std::int32_t* const last_;
  const int first_head_;
  const int heads_;  // of this pass
  Reader reader_;
};

template <typename Reader>
LAMINA_KERNEL_SHARING(Reader::kThreads, Reader::kBlocks)
attend(const AttendArgs args) {
  Attend<Reader>(args).run();
}

// One compiled attention kernel, and what a launch of it has to know. Cheap to copy.
struct AttendKernel {
  const void* entry;
  int threads;
  int shared_bytes;
  int heads;   // of a pass
  int tokens;  // of a tile on the line
};

template <typename Reader>
AttendKernel attend_kernel() {
  using Kernel = Attend<Reader>;
  return {reinterpret_cast<const void*>(&attend<Reader>), Kernel::kThreads, Kernel::kSharedBytes,
          Kernel::kHeads, Kernel::kTokens};
}

// The kernels for one type of K and V. Each is compiled in a file of its own, so that they compile side by
// side.
struct Kernels {
  AttendKernel (*attend)(int group, int head_dim);
  AttendKernel (*attend_latent)(int group);
  const void* finish;
  int element_bytes;
};

Kernels kernels_bf16();
Kernels kernels_f16();
Kernels kernels_f32();

}  // namespace lamina::attention::cuda
