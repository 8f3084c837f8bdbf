#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"
#include "attention/cuda/partition.hpp"
#include "attention/cuda/ring.cuh"
#include "attention/cuda/softmax.hpp"

namespace lamina::attention::cuda {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;

// What one launch is given; by value, so that a captured graph keeps it.
struct AttendArgs {
  const void* q;  // [requests][heads][head_dim]
  Rows rows;      // of KV head 0
  std::int64_t head_bytes;
  const std::int32_t* slots;
  std::int32_t heads;
  std::int32_t group;  // query heads of one KV head
  std::int32_t head_dim;
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
  float* out;  // [requests][heads][head_dim]
  float* lse;  // [requests][heads]
};

// Attention of every request's new query over its previous tokens. A block is one worker of the line
// (block_y) and one pass of kHeads of the group's heads (block_x, fastest, so that the passes of a stretch
// run together and all but the first find its bytes in L2; groups of up to 16 heads have one pass).
template <typename Warp>
class Attend {
public:
  static constexpr int kHeads = Warp::kHeads;
  static constexpr int kDim = Warp::kDim;
  static constexpr int kTokens = kWarps * Warp::Tile::kRows;  // of a tile on the line
  using WarpRing = Ring<typename Warp::Tile>;
  static constexpr int kStride = kDim + 8;  // floats between rows of heads: neighbours begin in other banks

  // Where the block's shared memory goes: the warps' rings, each of which later holds the warp's part of the
  // output; then one number a head for each of these.
  static constexpr int kRings = kWarps * WarpRing::kBytes;
  static constexpr int kSharedBytes = kRings + (3 * kWarps + 1) * kHeads * 4 + 16;
  static_assert(kHeads * kStride * 4 <= WarpRing::kBytes);

  LAMINA_DEVICE explicit Attend(const AttendArgs& args)
      : args_(args),
        shared_(shared_memory()),
        max_(reinterpret_cast<float*>(shared_ + kRings)),
        sum_(max_ + kWarps * kHeads),
        factor_(sum_ + kWarps * kHeads),
        lse_(factor_ + kWarps * kHeads),
        last_(reinterpret_cast<std::int32_t*>(lse_ + kHeads)),
        first_head_(block_x() * kHeads),
        heads_(args.group - first_head_ < kHeads ? args.group - first_head_ : kHeads) {}

  LAMINA_DEVICE void run() {
    const std::int32_t worker = block_y();
    const Plan plan = *args_.plan;
    std::int32_t request = args_.first[worker];
    if (plan.empty > 0) fill_empty();
    if (worker >= plan.line.workers) return;
    const std::int64_t share_end = plan.line.share(worker + 1);
    for (std::int64_t at = plan.line.share(worker); at < share_end;) {
      const Segment segment = segment_at(plan.line, worker, at, args_.requests, request, kTokens);
      read(segment);
      if (segment.parts == 1) {
        const std::int64_t row = head_row(segment);
        put(args_.out + row * args_.head_dim, args_.lse + row);
      } else {
        const std::int64_t row = part_row(segment.part(worker));
        put(args_.part_out + row * args_.head_dim, args_.part_lse + row);
        if (arrives_last(segment)) join(segment);
      }
      sync_block();  // the rings and the numbers beside them are free again
      at = segment.end;
      request = segment.next_request;
    }
  }

private:
  static LAMINA_DEVICE int lane() { return thread_index() % 32; }
  static LAMINA_DEVICE int warp() { return thread_index() / 32; }

  // A request without visible tokens has no tile on the line.
  LAMINA_DEVICE void fill_empty() {
    for (int request = block_y(); request < args_.requests.count; request += blocks_y()) {
      if (args_.requests.begin[request] != args_.requests.end[request]) continue;
      for (int head = thread_index() + block_x() * kThreads; head < args_.heads;
           head += kThreads * blocks_x()) {
        args_.lse[static_cast<std::int64_t>(request) * args_.heads + head] = kNothing;
      }
      const int floats = args_.heads * args_.head_dim;
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

  // Every warp attends to its share of the segment's tokens, and the four agree on the weights of their
  // parts.
  LAMINA_DEVICE void read(const Segment& segment) {
    constexpr int kRows = Warp::Tile::kRows;
    const int own = warp() * WarpRing::kBytes;
    const std::int32_t begin = segment.tokens.begin + warp() * kRows;
    const std::int32_t end = segment.tokens.end;
    const int groups = begin < end ? (end - begin + kTokens - 1) / kTokens : 0;

    // The query's loads are on their way before the first wait, which is for the indices.
    Warp attention(lane());
    attention.open(static_cast<const typename Warp::Storage*>(args_.q) + head_row(segment) * args_.head_dim,
                   heads_, args_.head_dim);
    const std::int64_t head_at = segment.kv_head * args_.head_bytes;
    WarpRing ring(
        own, lane(),
        {args_.rows.k + head_at, args_.rows.v + head_at, args_.rows.slot_bytes, args_.rows.row_bytes},
        args_.slots, begin, end, kTokens);
    LAMINA_UNROLL_1
    for (int i = -WarpRing::kAhead; i < groups; ++i) {
      if (i >= 0) attention.weigh(ring.keys(i), end - begin - i * kTokens, args_.scoring);
      ring.fetch_keys(i);
      if (i >= 0) attention.gather(ring.values(i));
      ring.fetch_values(i);
    }
    ring.close();

    attention.finish(max_ + warp() * kHeads, sum_ + warp() * kHeads);
    sync_block();
    if (thread_index() < kHeads) agree(thread_index());
    sync_block();
    attention.write(reinterpret_cast<float*>(shared_ + own), kStride, factor_ + warp() * kHeads);
    sync_block();
  }

  // From the warps' maxima and sums of a head to the factors of their parts. At least one warp has seen a
  // token.
  LAMINA_DEVICE void agree(int head) {
    float max = kNothing;
    for (int w = 0; w < kWarps; ++w) max = max > max_[w * kHeads + head] ? max : max_[w * kHeads + head];
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sum_[w * kHeads + head] * decay(max_[w * kHeads + head], max);
    for (int w = 0; w < kWarps; ++w) factor_[w * kHeads + head] = decay(max_[w * kHeads + head], max) / sum;
    lse_[head] = log_sum(max, sum);
  }

  // Adds up the warps' parts.
  LAMINA_DEVICE void put(float* out, float* lse) const {
    if (thread_index() < heads_) lse[thread_index()] = lse_[thread_index()];
    for (int i = thread_index(); i < heads_ * args_.head_dim; i += kThreads) {
      const int head = i / args_.head_dim;
      const int at = head * kStride + i % args_.head_dim;
      float sum = 0;
      LAMINA_UNROLL
      for (int w = 0; w < kWarps; ++w)
        sum += reinterpret_cast<const float*>(shared_ + w * WarpRing::kBytes)[at];
      out[i] = sum;
    }
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

  // Puts the unit together, always in the order of its workers: the result does not depend on who came last.
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
    for (int i = thread_index(); i < heads_ * args_.head_dim; i += kThreads) {
      const int head = i / args_.head_dim;
      const std::int64_t step = static_cast<std::int64_t>(kHeads) * args_.head_dim;
      const float* from = args_.part_out + first * args_.head_dim + i;
      float sum = 0;
      LAMINA_UNROLL_4
      for (int p = 0; p < segment.parts; ++p) {
        const float weight =
            exp2_of((load_l2(args_.part_lse + first + p * kHeads + head) - lse_[head]) * kLog2E);
        sum += weight * load_l2(from + p * step);
      }
      args_.out[row * args_.head_dim + i] = sum;
    }
  }

  const AttendArgs& args_;
  char* const shared_;
  float* const max_;  // [warp][head], as all of these
  float* const sum_;
  float* const factor_;
  float* const lse_;  // [head]
  std::int32_t* const last_;
  const int first_head_;
  const int heads_;  // of this pass
};

// How many blocks are to share a multiprocessor, as far as registers go: more than shared memory admits would
// be paid for with spills.
constexpr int blocks_for(int heads, int dim) { return dim > 128 ? 1 : heads > 8 || dim > 64 ? 3 : 4; }

template <typename Warp>
LAMINA_KERNEL_SHARING(kThreads, blocks_for(Warp::kHeads, Warp::kDim))
attend(const AttendArgs args) {
  Attend<Warp>(args).run();
}

// One compiled attention kernel, and what a launch of it has to know. Cheap to copy.
struct AttendKernel {
  const void* entry;
  int shared_bytes;
  int heads;   // of a pass
  int tokens;  // of a tile on the line
};

// The kernels for one type of K and V. Each is compiled in a file of its own, so that they compile side by
// side.
struct Kernels {
  AttendKernel (*attend)(int group, int head_dim);
  const void* finish;
  int element_bytes;
};

Kernels kernels_bf16();
Kernels kernels_f16();
Kernels kernels_f32();

}  // namespace lamina::attention::cuda
