#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "attention/kernel.hpp"
#include "attention/stored.hpp"
#include "attention/thread_pool.hpp"
#include "core/slab.hpp"

namespace lamina::attention {

// Which of a request's tokens attention goes over.
enum class Tokens { kPrevious, kAll };  // without the newest one, whose K and V are yet to come, or with it

// A piece of one request's tokens: what one unit of work attends to.
struct Range {
  int request;
  const Slot* slots;
  int tokens;
  int row;  // where its partial results go; a request's ranges have consecutive rows
};

// The ranges of a batch, as layers with one sight need them.
struct Ranges {
  Sight sight;
  Tokens which;
  std::vector<Range> list;
  std::vector<int> first_row;  // [requests + 1]; each request has one row more than ranges, for its new token
};

// One iteration's batch: the slots of each request, taken once for all layers.
//
// Ranges end at multiples of a fixed number of tokens, so that a request's results depend on nothing but its
// own tokens: not on the rest of the batch, and not on how many threads there are.
class Plan {
public:
  explicit Plan(int range_tokens) : range_tokens_(range_tokens) {}

  // The requests' lists as they are now. The slab may change afterwards.
  void take(const Slab& slab, std::span<const RequestId> requests);

  // Lists given outright: request i has slots[offsets[i] .. offsets[i + 1]).
  void take(std::span<const std::int64_t> offsets, std::span<const Slot> slots);

  std::size_t requests() const noexcept { return lists_.size(); }
  // All slots are below this.
  std::int64_t slot_limit() const noexcept { return slot_limit_; }
  const Slab::View& list(std::size_t request) const { return lists_[request]; }

  const Ranges& ranges(Sight sight, Tokens which);

private:
  void adopt(std::vector<Slab::View> lists, std::int64_t slot_limit);

  int range_tokens_;
  std::vector<Slab::View> lists_;
  std::int64_t slot_limit_ = 0;
  std::vector<std::unique_ptr<Ranges>> ranges_;  // created on first use
};

// A call that makes no sense now: finish() before begin(), or two begins.
struct WrongOrder : std::logic_error {
  using std::logic_error::logic_error;
};

// Attention over some tokens: outputs, normalised, and the logarithms of their softmaxes' denominators.
struct Attended {
  float* out;  // [rows][value_dim]
  float* lse;  // [rows], -infinity where there was no token
};

// Attention over the union of two disjoint sets of tokens. `to` may be one of the inputs.
void combine(const Attended& a, const Attended& b, const Attended& to, std::size_t rows,
             std::size_t value_dim);

// Numbers that are written before they are read, on whole cache lines. Grows, and then forgets.
template <typename T>
class Scratch {
public:
  T* room_for(std::size_t count) {
    if (count > capacity_) {
      data_.reset();
      data_.reset(static_cast<T*>(::operator new(count * sizeof(T), kLine)));
      capacity_ = count;
    }
    return data_.get();
  }

  T* data() const noexcept { return data_.get(); }

private:
  static constexpr std::align_val_t kLine{64};
  struct Delete {
    void operator()(T* p) const noexcept { ::operator delete(p, kLine); }
  };

  std::unique_ptr<T, Delete> data_;
  std::size_t capacity_ = 0;
};

// One layer of the KV arena. Strides in stored numbers, not bytes; a head's numbers are consecutive. v is k
// where a value is part of its key. Scales, where numbers have some, lie as far apart as slots do, a slot's
// side by side.
struct LayerView {
  std::byte* k;
  std::byte* v;
  std::int64_t slots;
  std::int64_t slot_stride;
  std::int64_t head_stride;
  float scale;
  Sight sight;
  float softcap;               // 0: none
  std::vector<float> sinks{};  // of each query head a score that counts, and has no value; or none
  int space = 0;               // whose plan it uses
  std::byte* k_scales = nullptr;
  std::byte* v_scales = nullptr;
};

// Decode attention of one model's heads over a KV arena owned by the caller.
//
// Each iteration: plan(), then for each layer begin() when the queries arrive and finish() when the keys and
// values of the new tokens do. In between, the previous tokens are attended to. Layers of different spaces
// have the tokens of the same requests in slots of their own: each space is planned. Not for two threads at
// once.
class Worker {
public:
  // threads 0: all usable cores. isa "": the best one, or $LAMINA_ISA; prefetch likewise, or
  // $LAMINA_PREFETCH. Keys and values are rounded to what is stored as they go into the arena, and attended
  // to as they are there, the newest token's as well.
  Worker(DType dtype, Shape shape, int threads, std::string_view isa, std::string_view prefetch = "",
         Stored stored = Stored::kAsIs);

  int add_layer(LayerView layer);

  void plan(const Slab& slab, std::span<const RequestId> requests, int space = 0);
  void plan(std::span<const std::int64_t> offsets, std::span<const Slot> slots, int space = 0);

  // q [requests][heads][head_dim] has to stay as it is until finish() returns.
  void begin(int layer, const std::byte* q);
  // k, v [requests][kv_heads][head_dim] go into the newest slots; out [requests][heads][value_dim].
  void finish(int layer, const std::byte* k, const std::byte* v, std::byte* out);
  // Over all tokens that are planned, the newest one's keys and values being in the arena already. Without
  // sinks: they count once, when all is joined.
  void partial(int layer, const std::byte* q, float* out, float* lse);
  // Rows k, v [slots][kv_heads][head_dim] into these slots.
  void append(int layer, const std::byte* k, const std::byte* v, std::span<const Slot> slots);

  // Reads memory once on all threads; bytes a second. What attention's speed is measured by.
  double read_bandwidth(const std::byte* at, std::size_t size);

  Isa isa() const noexcept { return isa_; }
  Prefetch prefetch() const noexcept { return prefetch_; }
  int threads() const noexcept { return pool_.threads(); }

private:
  // What the units of a job share. Units are ranges, or requests, times parts of the heads.
  struct Job {
    const LayerView* layer;
    const Plan* plan;
    Source source;
    const Ranges* ranges;
    const std::byte* q;
    int heads_a_unit;  // KV heads
    int parts;         // units a range, or a request
    // What merging needs, null where it does not.
    const std::byte* k = nullptr;
    const std::byte* v = nullptr;
    std::byte* out = nullptr;
    float* out_f32 = nullptr;
    float* lse = nullptr;
  };

  void require_idle(const char* call) const;
  const LayerView& known(int layer) const;
  const LayerView& planned(int layer) const;
  Plan& plan_of(int space);
  void start(const LayerView& layer, const std::byte* q, Tokens which);
  void merge();
  void split_heads(std::size_t groups);
  static void attend_unit(void* worker, std::size_t unit, std::size_t thread) noexcept;
  static void merge_unit(void* worker, std::size_t unit, std::size_t thread) noexcept;
  void store(const LayerView& layer, Slot slot, std::size_t from, int first, int last, const std::byte* k,
             const std::byte* v) const;
  static std::size_t size(std::int64_t number) { return static_cast<std::size_t>(number); }
  std::size_t head_bytes() const { return size(shape_.head_dim) * bytes_of(dtype_); }
  std::size_t row_bytes() const { return size(shape_.kv_heads) * head_bytes(); }
  std::size_t number_bytes() const { return bytes_of(stored_, dtype_); }
  std::size_t stored_head_bytes() const { return size(shape_.head_dim) * number_bytes(); }
  const std::byte* query(int request) const {
    return job_.q + size(request) * size(shape_.heads) * head_bytes();
  }
  Partial* partials(int row) const { return partials_.data() + size(row) * size(shape_.heads); }
  float* rows(int row) const {
    return rows_.data() + size(row) * size(shape_.heads) * size(padded(shape_.value_dim()));
  }
  float* scratch(std::size_t thread) const { return scratch_.data() + thread * scratch_each(); }
  std::size_t scratch_each() const {
    constexpr std::size_t kLine = 16;  // floats; threads must not share a cache line
    return (size(scratch_floats(shape_, job_.heads_a_unit, widen_ != nullptr)) + kLine - 1) / kLine * kLine;
  }

  DType dtype_;
  Stored stored_;
  Shape shape_;
  Isa isa_;
  Prefetch prefetch_;
  Kernels kernels_;
  Widen widen_;  // null where nothing is rounded
  std::vector<LayerView> layers_;
  std::vector<Plan> plans_;  // by space
  std::optional<int> begun_;
  Job job_{};
  Scratch<float> rows_;
  Scratch<Partial> partials_;
  Scratch<float> scratch_;
  ThreadPool pool_;  // last, so that its threads end before what they use
};

}  // namespace lamina::attention
