#include "attention/worker.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace lamina::attention {

namespace {

// Maximum tokens of a range: enough that partial results are few compared with keys and values.
constexpr int kRangeTokens = 1024;

// A unit reads about this much of each token's row: the more of it lies side by side, the better for the
// memory.
constexpr std::size_t kUnitRowBytes = 4096;

// Below this, waking another thread takes longer than doing it.
constexpr std::size_t kAloneBytes = 64 << 10;

// What a thread reads at a time when bandwidth is measured: handed out as attention's units are.
constexpr std::size_t kReadUnit = 1 << 20;

Shape checked(Shape shape) {
  if (shape.heads < 1 || shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0) {
    throw std::invalid_argument("heads is " + std::to_string(shape.heads) + " and kv_heads " +
                                std::to_string(shape.kv_heads) + ", but kv_heads must divide heads");
  }
  if (shape.head_dim < 8 || shape.head_dim > kMaxHeadDim || shape.head_dim % 8 != 0) {
    throw std::invalid_argument("head_dim is " + std::to_string(shape.head_dim) +
                                " but must be a multiple of 8 from 8 to " + std::to_string(kMaxHeadDim));
  }
  if (shape.latent < 0 || shape.latent > shape.head_dim || shape.latent % 8 != 0) {
    throw std::invalid_argument("latent is " + std::to_string(shape.latent) +
                                " but must be 0, for values apart from keys, or a multiple of 8 up to "
                                "head_dim, " +
                                std::to_string(shape.head_dim));
  }
  return shape;
}

}  // namespace

void Plan::take(const Slab& slab, std::span<const RequestId> requests) {
  std::vector<Slab::View> lists;
  lists.reserve(requests.size());
  for (const RequestId request : requests) lists.push_back(slab.indices(request));
  adopt(std::move(lists), slab.capacity());
}

void Plan::take(std::span<const std::int64_t> offsets, std::span<const Slot> slots) {
  if (offsets.empty() || offsets.front() != 0 || !std::is_sorted(offsets.begin(), offsets.end()) ||
      offsets.back() != static_cast<std::int64_t>(slots.size())) {
    throw std::invalid_argument("offsets must begin with 0, never fall, and end with the number of slots, " +
                                std::to_string(slots.size()));
  }
  Slot least = 0;
  Slot most = -1;
  for (const Slot slot : slots) {
    least = std::min(least, slot);
    most = std::max(most, slot);
  }
  if (least < 0) throw std::out_of_range("slot " + std::to_string(least) + " is negative");

  const std::shared_ptr<Slot[]> copy(new Slot[slots.size()]);
  std::copy(slots.begin(), slots.end(), copy.get());
  std::vector<Slab::View> lists;
  lists.reserve(offsets.size() - 1);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    lists.push_back({std::shared_ptr<const Slot[]>(copy, copy.get() + offsets[i]),
                     static_cast<std::size_t>(offsets[i + 1] - offsets[i])});
  }
  adopt(std::move(lists), std::int64_t{most} + 1);
}

void Plan::adopt(std::vector<Slab::View> lists, std::int64_t slot_limit) {
  lists_ = std::move(lists);
  slot_limit_ = slot_limit;
  ranges_.clear();
}

const Ranges& Plan::ranges(Sight sight, Tokens which) {
  for (const auto& made : ranges_) {
    if (made->sight == sight && made->which == which) return *made;
  }
  auto ranges = std::make_unique<Ranges>(Ranges{sight, which, {}, {0}});
  int row = 0;
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    const Slab::View& view = lists_[i];
    const auto size = static_cast<std::int64_t>(view.size);
    const std::int64_t end = which == Tokens::kAll ? size : std::max<std::int64_t>(size - 1, 0);
    std::int64_t start = sight.first(size);
    while (start < end) {
      const std::int64_t stop = std::min(end, (start / range_tokens_ + 1) * range_tokens_);
      ranges->list.push_back(
          {static_cast<int>(i), view.slots.get() + start, static_cast<int>(stop - start), row++});
      start = stop;
    }
    ++row;
    ranges->first_row.push_back(row);
  }
  ranges_.push_back(std::move(ranges));
  return *ranges_.back();
}

Worker::Worker(DType dtype, Shape shape, int threads, std::string_view isa, std::string_view prefetch,
               Stored stored)
    : dtype_(dtype),
      stored_(stored),
      shape_(checked(shape)),
      isa_(choose_isa(isa)),
      prefetch_(choose_prefetch(prefetch)),
      kernels_(kernels_for(isa_, dtype)),
      widen_(widen_for(isa_, stored, dtype)),
      pool_(threads) {
  if (const Attend attend = narrow_attend(isa_, dtype, stored, shape_)) kernels_.attend = attend;
  plans_.emplace_back(kRangeTokens);
}

int Worker::add_layer(LayerView layer) {
  require_idle("add_layer");
  if (layer.slots < 1 || layer.slots > Slab::kMaxCapacity) {
    throw std::invalid_argument("slots is " + std::to_string(layer.slots) + " but must be from 1 to " +
                                std::to_string(Slab::kMaxCapacity));
  }
  if (layer.slot_stride < shape_.head_dim || layer.head_stride < shape_.head_dim) {
    throw std::invalid_argument("slot_stride is " + std::to_string(layer.slot_stride) + " and head_stride " +
                                std::to_string(layer.head_stride) + ", but rows of " +
                                std::to_string(shape_.head_dim) + " numbers would overlap");
  }
  if (shape_.latent != 0 && layer.v != layer.k) {
    throw std::invalid_argument("values are part of their keys, but v_ptr is not k_ptr");
  }
  if ((layer.k_scales != nullptr) != (stored_ == Stored::kInt8) ||
      (layer.v_scales != nullptr) != (stored_ == Stored::kInt8)) {
    throw std::invalid_argument("keys and values have scales where kv_dtype is int8, and only there");
  }
  for (const auto& [name, tokens] : {std::pair{"window", layer.sight.window}, {"chunk", layer.sight.chunk}}) {
    if (tokens < 0) {
      throw std::invalid_argument(std::string(name) + " is " + std::to_string(tokens) +
                                  " but must be 0, for all tokens, or more");
    }
  }
  if (!std::isfinite(layer.scale) || !std::isfinite(layer.softcap) || layer.softcap < 0) {
    throw std::invalid_argument("scale and softcap must be finite, and softcap 0, for none, or more");
  }
  if (!layer.sinks.empty() && layer.sinks.size() != size(shape_.heads)) {
    throw std::invalid_argument("there are " + std::to_string(layer.sinks.size()) + " sinks for " +
                                std::to_string(shape_.heads) + " heads");
  }
  if (layer.space < 0 || size(layer.space) > plans_.size()) {
    throw std::invalid_argument("space is " + std::to_string(layer.space) + " but must be from 0 to " +
                                std::to_string(plans_.size()) + ", the next one");
  }
  if (size(layer.space) == plans_.size()) plans_.emplace_back(kRangeTokens);
  layers_.push_back(std::move(layer));
  return static_cast<int>(layers_.size()) - 1;
}

void Worker::plan(const Slab& slab, std::span<const RequestId> requests, int space) {
  plan_of(space).take(slab, requests);
}

void Worker::plan(std::span<const std::int64_t> offsets, std::span<const Slot> slots, int space) {
  plan_of(space).take(offsets, slots);
}

Plan& Worker::plan_of(int space) {
  require_idle("plan");
  if (space < 0 || size(space) >= plans_.size()) {
    throw std::out_of_range("space is " + std::to_string(space) + " but there are " +
                            std::to_string(plans_.size()));
  }
  return plans_[size(space)];
}

void Worker::begin(int layer, const std::byte* q) {
  require_idle("begin");
  const LayerView& view = planned(layer);
  const Plan& plan = plans_[size(view.space)];
  for (std::size_t i = 0; i < plan.requests(); ++i) {
    if (plan.list(i).size == 0) {
      throw std::invalid_argument("request number " + std::to_string(i) +
                                  " of the plan has no token, so there is no newest one to attend from");
    }
  }
  start(view, q, Tokens::kPrevious);
  begun_ = layer;
}

void Worker::finish(int layer, const std::byte* k, const std::byte* v, std::byte* out) {
  if (begun_ != layer) {
    throw WrongOrder("finish() of layer " + std::to_string(layer) + ", but " +
                     (begun_ ? "layer " + std::to_string(*begun_) + " was begun" : "no layer was begun"));
  }
  pool_.finish();
  job_.k = k;
  job_.v = v;
  job_.out = out;
  merge();
  begun_.reset();
}

void Worker::partial(int layer, const std::byte* q, float* out, float* lse) {
  require_idle("partial");
  start(planned(layer), q, Tokens::kAll);
  pool_.finish();
  job_.out_f32 = out;
  job_.lse = lse;
  merge();
}

void Worker::append(int layer, const std::byte* k, const std::byte* v, std::span<const Slot> slots) {
  require_idle("append");
  const LayerView& view = known(layer);
  for (const Slot slot : slots) {
    if (slot < 0 || slot >= view.slots) {
      throw std::out_of_range("slot " + std::to_string(slot) + " is outside layer " + std::to_string(layer) +
                              ", which has " + std::to_string(view.slots));
    }
  }
  for (std::size_t i = 0; i < slots.size(); ++i) store(view, slots[i], i, 0, shape_.kv_heads, k, v);
}

double Worker::read_bandwidth(const std::byte* at, std::size_t size) {
  require_idle("read_bandwidth");
  struct Reading {
    const Kernels* kernels;
    const std::byte* at;
    std::size_t size;
  } reading{&kernels_, at, size};
  const auto read = [](void* context, std::size_t unit, std::size_t) noexcept {
    const Reading& what = *static_cast<Reading*>(context);
    what.kernels->read(what.at + unit * kReadUnit, std::min(kReadUnit, what.size - unit * kReadUnit));
  };
  const auto start = std::chrono::steady_clock::now();
  pool_.start((size + kReadUnit - 1) / kReadUnit, read, &reading);
  pool_.finish();
  return static_cast<double>(size) /
         std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Worker::require_idle(const char* call) const {
  if (begun_) {
    throw WrongOrder(std::string(call) + "() while layer " + std::to_string(*begun_) +
                     " has begun; finish() it first");
  }
}

const LayerView& Worker::known(int layer) const {
  if (layer < 0 || size(layer) >= layers_.size()) {
    throw std::out_of_range("layer is " + std::to_string(layer) + " but there are " +
                            std::to_string(layers_.size()));
  }
  return layers_[size(layer)];
}

const LayerView& Worker::planned(int layer) const {
  const LayerView& view = known(layer);
  const std::int64_t limit = plans_[size(view.space)].slot_limit();
  if (limit > view.slots) {
    throw std::out_of_range("the plan has slots up to " + std::to_string(limit - 1) + " but layer " +
                            std::to_string(layer) + " has only " + std::to_string(view.slots));
  }
  return view;
}

void Worker::start(const LayerView& layer, const std::byte* q, Tokens which) {
  job_ = {};
  job_.layer = &layer;
  job_.source = {layer.k,
                 layer.v,
                 size(layer.slot_stride) * number_bytes(),
                 size(layer.head_stride) * number_bytes(),
                 layer.scale,
                 layer.softcap,
                 layer.k_scales,
                 layer.v_scales};
  Plan& plan = plans_[size(layer.space)];
  job_.plan = &plan;
  job_.ranges = &plan.ranges(layer.sight, which);
  job_.q = q;
  const auto rows = size(job_.ranges->first_row.back()) * size(shape_.heads);
  partials_.room_for(rows);
  rows_.room_for(rows * size(padded(shape_.value_dim())));

  std::size_t tokens = 0;
  for (const Range& range : job_.ranges->list) tokens += size(range.tokens);
  const std::size_t ranges = job_.ranges->list.size();
  split_heads(ranges);
  pool_.start(
      ranges * size(job_.parts), &attend_unit, this,
      tokens * (shape_.latent != 0 ? 1 : 2) * size(shape_.kv_heads) * stored_head_bytes() > kAloneBytes);
}

void Worker::merge() {
  const auto rows = size(job_.ranges->first_row.back()) * size(shape_.heads);
  split_heads(job_.plan->requests());
  pool_.start(job_.plan->requests() * size(job_.parts), &merge_unit, this,
              rows * size(shape_.value_dim()) * sizeof(float) > kAloneBytes);
  pool_.finish();
}

// KV heads go to a unit until it reads enough of each row, but not so many that threads go without work. No
// result depends on it.
void Worker::split_heads(std::size_t groups) {
  const auto kv_heads = size(shape_.kv_heads);
  std::size_t heads = std::clamp(kUnitRowBytes / stored_head_bytes(), std::size_t{1}, kv_heads);
  const std::size_t enough = 4 * size(pool_.threads());
  while (heads > 1 && groups * ((kv_heads + heads - 1) / heads) < enough) heads = (heads + 1) / 2;
  job_.heads_a_unit = static_cast<int>(heads);
  job_.parts = static_cast<int>((kv_heads + heads - 1) / heads);
  scratch_.room_for(pool_.places() * scratch_each());
}

void Worker::attend_unit(void* worker, std::size_t unit, std::size_t thread) noexcept {
  const Worker& self = *static_cast<Worker*>(worker);
  const Job& job = self.job_;
  const Range& range = job.ranges->list[unit / size(job.parts)];
  const int first = static_cast<int>(unit % size(job.parts)) * job.heads_a_unit;
  const int last = std::min(first + job.heads_a_unit, self.shape_.kv_heads);
  self.kernels_.attend({&job.source, self.shape_, first, last, self.query(range.request), range.slots,
                        range.tokens, self.partials(range.row), self.rows(range.row), self.scratch(thread),
                        self.prefetch_, self.number_bytes(), self.widen_});
}

void Worker::merge_unit(void* worker, std::size_t unit, std::size_t thread) noexcept {
  const Worker& self = *static_cast<Worker*>(worker);
  const Job& job = self.job_;
  const int request = static_cast<int>(unit / size(job.parts));
  const int first = static_cast<int>(unit % size(job.parts)) * job.heads_a_unit;
  const int last = std::min(first + job.heads_a_unit, self.shape_.kv_heads);
  const int row = job.ranges->first_row[request];
  int ranges = job.ranges->first_row[request + 1] - 1 - row;
  if (job.out != nullptr) {
    const Slab::View& list = job.plan->list(size(request));
    const Slot newest = list.slots[list.size - 1];
    self.store(*job.layer, newest, size(request), first, last, job.k, job.v);
    // The new token is a range of its own, read from where it has just arrived, or as it is stored if that
    // differs: no result may depend on when a token was the newest one.
    const Source arrived{
        job.k, job.v, self.row_bytes(), self.head_bytes(), job.source.scale, job.source.softcap};
    const bool rounded = self.widen_ != nullptr;
    const Slot here = rounded ? newest : request;
    self.kernels_.attend({rounded ? &job.source : &arrived, self.shape_, first, last, self.query(request),
                          &here, 1, self.partials(row + ranges), self.rows(row + ranges),
                          self.scratch(thread), self.prefetch_, self.number_bytes(), self.widen_});
    ++ranges;
  }
  const float* sinks = job.out == nullptr || job.layer->sinks.empty() ? nullptr : job.layer->sinks.data();
  const int group = self.shape_.group();
  const std::size_t at = size(request) * size(self.shape_.heads);
  const std::size_t numbers = at * size(self.shape_.value_dim());
  self.kernels_.merge({self.shape_, first * group, last * group, self.partials(row), self.rows(row), ranges,
                       sinks, job.out == nullptr ? nullptr : job.out + numbers * bytes_of(self.dtype_),
                       job.out_f32 == nullptr ? nullptr : job.out_f32 + numbers,
                       job.lse == nullptr ? nullptr : job.lse + at});
}

// Puts row `from` of k and v into the arena, for the KV heads [first, last).
void Worker::store(const LayerView& layer, Slot slot, std::size_t from, int first, int last,
                   const std::byte* k, const std::byte* v) const {
  const std::size_t start = size(slot) * size(layer.slot_stride) * number_bytes();
  const auto put = [&](const std::byte* row, std::byte* numbers, std::byte* scales, int head) {
    std::byte* to = numbers + start + size(head) * size(layer.head_stride) * number_bytes();
    if (stored_ == Stored::kAsIs) {
      std::memcpy(to, row, head_bytes());
      return;
    }
    float scale;
    narrow_to(stored_, dtype_)(row, shape_.head_dim, to, &scale);
    if (scales != nullptr) std::memcpy(scales + start + size(head) * sizeof scale, &scale, sizeof scale);
  };
  for (int head = first; head < last; ++head) {
    const std::size_t source = from * row_bytes() + size(head) * head_bytes();
    put(k + source, layer.k, layer.k_scales, head);
    if (shape_.latent == 0) put(v + source, layer.v, layer.v_scales, head);
  }
}

void combine(const Attended& a, const Attended& b, const Attended& to, std::size_t rows,
             std::size_t value_dim) {
  for (std::size_t row = 0; row < rows; ++row) {
    const float most = std::max(a.lse[row], b.lse[row]);
    const bool nothing = most == -std::numeric_limits<float>::infinity();
    // Relative to the larger one, so that neither overflows and the larger one never underflows.
    const float weight_a = nothing ? 0.0f : std::exp(a.lse[row] - most);
    const float weight_b = nothing ? 0.0f : std::exp(b.lse[row] - most);
    const float sum = weight_a + weight_b;
    const float share_a = nothing ? 0.0f : weight_a / sum;
    const float share_b = nothing ? 0.0f : weight_b / sum;
    for (std::size_t i = row * value_dim; i < (row + 1) * value_dim; ++i) {
      to.out[i] = a.out[i] * share_a + b.out[i] * share_b;
    }
    to.lse[row] = most + (nothing ? 0.0f : std::log(sum));
  }
}

}  // namespace lamina::attention
