#include "sim/pipeline.hpp"

#include <algorithm>

namespace lamina::sim {

Pipeline::Pipeline(Rotation rotation, int layers)
    : rotation_(rotation),
      layers_(layers),
      iterations_(static_cast<std::size_t>(rotation.batches)),
      replica_free_(static_cast<std::size_t>(rotation.replicas())),
      ready_(static_cast<std::size_t>(rotation.batches)),
      slice_end_(ready_.size()),
      replica_busy_(replica_free_.size()) {}

void Pipeline::run(std::span<const Load> loads, std::span<const Ticks> ready, std::span<Ticks> finished) {
  std::copy(ready.begin(), ready.end(), ready_.begin());
  if (loads.size() == 1 && alone_from(ready_[0], loads[0])) {
    slice_end_[0] = replica_free_[0] = ready_[0] + alone(loads[0]);
    attention_free_ = slice_end_[0] - loads[0].last_slice - loads[0].out_transfer;
  } else if (rotation_.own_attention && !recording()) {
    run_separately(loads);
  } else if (replica_free_.size() == 1 && !recording()) {
    run_on_one_replica(loads);
  } else {
    run_in_rounds(loads);
  }
  std::copy(slice_end_.begin(), slice_end_.end(), finished.begin());
  for (int batch = 0; batch < rotation_.batches; ++batch) {
    const auto j = static_cast<std::size_t>(batch);
    if (!loads[j].active) continue;
    count_work(batch, loads[j]);
    ++iterations_[j];
  }
  ++cycle_;
}

// Each replica attends by itself, so batches are independent, and sending q early cannot help.
void Pipeline::run_separately(std::span<const Load> loads) {
  for (std::size_t j = 0; j < loads.size(); ++j) {
    if (!loads[j].active) continue;
    Load load = loads[j];
    load.q_lead = std::min(load.q_lead, load.q_transfer);
    slice_end_[j] = replica_free_[j] = std::max(ready_[j], replica_free_[j]) + alone(load);
  }
}

void Pipeline::run_in_rounds(std::span<const Load> loads) {
  round(loads, 0);
  int slice = 1;
  while (slice < layers_) {
    if (!recording()) skip_repeating_rounds(loads, slice);
    if (slice < layers_) round(loads, slice++);
  }
  round(loads, layers_);
}

// The same for the usual case, serial or two batches, with everything at hand in one small array: most of a
// replay's time is spent here.
void Pipeline::run_on_one_replica(std::span<const Load> loads) {
  batch_clocks_.clear();
  for (std::size_t j = 0; j < loads.size(); ++j) {
    if (loads[j].active)
      batch_clocks_.push_back({j, ready_[j], 0, &loads[j], loads[j].q_transfer - loads[j].q_lead});
  }
  Ticks model = replica_free_[0];
  Ticks attention = attention_free_;
  const auto round = [&](Ticks Load::* length) {
    for (BatchClock& clock : batch_clocks_) {
      const Load& load = *clock.load;
      model = std::max(clock.ready, model) + load.*length;
      const Ticks start = std::max(model + clock.q_delay, attention);
      attention = std::max(start + load.attention, model + load.kv_transfer) + load.combine;
      clock.ready = attention + load.out_transfer;
    }
  };
  round(&Load::first_slice);
  for (int left = layers_ - 1; left > 0;) {
    const Ticks model_before = model, attention_before = attention;
    for (BatchClock& clock : batch_clocks_) clock.before = clock.ready;
    round(&Load::mid_slice);
    --left;
    const Ticks step = model - model_before;
    bool repeats = attention - attention_before == step;
    for (const BatchClock& clock : batch_clocks_) repeats &= clock.ready - clock.before == step;
    if (!repeats) continue;
    model += step * left;
    attention += step * left;
    for (BatchClock& clock : batch_clocks_) clock.ready += step * left;
    break;
  }
  for (const BatchClock& clock : batch_clocks_) {
    model = std::max(clock.ready, model) + clock.load->last_slice;
    slice_end_[clock.batch] = model;
  }
  replica_free_[0] = model;
  attention_free_ = attention;
}

// What an iteration was for the workers, added up once instead of at every slice.
void Pipeline::count_work(int batch, const Load& load) {
  attention_busy_ += layers_ * (load.attention + load.combine);
  const std::int64_t first = cycle_ * (layers_ + 1);
  const auto busy = [&](std::int64_t slice) -> Ticks& {
    return replica_busy_[static_cast<std::size_t>(rotation_.replica(batch, first + slice))];
  };
  busy(0) += load.first_slice;
  busy(layers_) += load.last_slice;
  if (!rotation_.migrates()) {
    busy(1) += (layers_ - 1) * load.mid_slice;
    return;
  }
  // Once round all replicas as often as it goes, then the rest one by one.
  const int turns = (layers_ - 1) / rotation_.replicas();
  for (Ticks& each : replica_busy_) each += turns * load.mid_slice;
  for (int slice = 1 + turns * rotation_.replicas(); slice < layers_; ++slice) busy(slice) += load.mid_slice;
}

void Pipeline::skip(int batch, std::int64_t iterations, const Load& load, Ticks attention, Ticks until) {
  replica_busy_[0] += iterations * (load.first_slice + (layers_ - 1) * load.mid_slice + load.last_slice);
  attention_busy_ += layers_ * attention;
  replica_free_[0] = until;
  attention_free_ = until - load.last_slice - load.out_transfer;
  iterations_[static_cast<std::size_t>(batch)] += iterations;
  cycle_ += iterations;
}

void Pipeline::record(Ticks from, Ticks to) {
  record_from_ = from;
  record_to_ = to;
}

inline void Pipeline::model(int batch, const Load& load, int slice) {
  const auto j = static_cast<std::size_t>(batch);
  const int replica = rotation_.replica(batch, cycle_ * (layers_ + 1) + slice);
  Ticks& free = replica_free_[static_cast<std::size_t>(replica)];
  const Ticks length = slice == 0 ? load.first_slice : slice < layers_ ? load.mid_slice : load.last_slice;
  const Ticks start = std::max(ready_[j], free);
  free = start + length;
  slice_end_[j] = free;
  if (recording()) keep(batch, replica, slice, start, free);
}

inline void Pipeline::attend(int batch, const Load& load, int layer) {
  const auto j = static_cast<std::size_t>(batch);
  const Ticks q_there = slice_end_[j] - load.q_lead + load.q_transfer;
  const Ticks kv_there = slice_end_[j] + load.kv_transfer;
  Ticks& free = rotation_.own_attention ? replica_free_[j] : attention_free_;
  const Ticks start = std::max(q_there, free);
  const Ticks end = std::max(start + load.attention, kv_there) + load.combine;
  free = end;
  ready_[j] = end + load.out_transfer;
  if (rotation_.migrates()) ready_[j] = std::max(ready_[j], slice_end_[j] + load.migration);
  if (recording()) keep(batch, -1, layer, start, end);
}

// One slice and, but for the last, one attention of every active batch.
void Pipeline::round(std::span<const Load> loads, int slice) {
  for (int batch = 0; batch < rotation_.batches; ++batch) {
    const Load& load = loads[static_cast<std::size_t>(batch)];
    if (!load.active) continue;
    model(batch, load, slice);
    if (slice < layers_) attend(batch, load, slice);
  }
}

// Between the first and the last slice every round is like the one before. Once a round has moved all clocks
// by the same amount, so will every further one: the remaining ones are a multiplication.
void Pipeline::skip_repeating_rounds(std::span<const Load> loads, int& slice) {
  clocks_.clear();
  clocks_.push_back(&attention_free_);
  for (std::size_t r = 0; r < replica_free_.size(); ++r) {
    // A replica whose own batch is idle stands still.
    if (rotation_.pipelining != Pipelining::kFixed || loads[r].active) clocks_.push_back(&replica_free_[r]);
  }
  for (std::size_t j = 0; j < ready_.size(); ++j) {
    if (loads[j].active) clocks_.push_back(&ready_[j]);
  }
  before_.resize(clocks_.size());
  // A round turns the replicas by one; after as many rounds as replicas each has its old place again.
  const int turn = rotation_.migrates() ? rotation_.replicas() : 1;
  while (slice + turn <= layers_) {
    for (std::size_t i = 0; i < clocks_.size(); ++i) before_[i] = *clocks_[i];
    for (int i = 0; i < turn; ++i) round(loads, slice++);
    const Ticks step = *clocks_[0] - before_[0];
    bool repeats = true;
    for (std::size_t i = 1; i < clocks_.size(); ++i) repeats &= *clocks_[i] - before_[i] == step;
    if (!repeats) continue;
    const int times = (layers_ - slice) / turn;
    for (Ticks* clock : clocks_) *clock += step * times;
    slice += times * turn;
    return;
  }
}

void Pipeline::keep(int batch, int worker, int slice, Ticks start, Ticks end) {
  if (start >= record_from_ && start < record_to_) {
    recorded_.push_back(
        {batch, worker, iterations_[static_cast<std::size_t>(batch)], cycle_, slice, start, end});
  }
}

}  // namespace lamina::sim
