#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/rotation.hpp"
#include "core/ticks.hpp"

namespace lamina::sim {

// What one batch needs for one iteration: the same for all its layers.
struct Load {
  bool active = false;
  Ticks first_slice = 0;   // before the first attention
  Ticks mid_slice = 0;     // between two attentions
  Ticks last_slice = 0;    // after the last attention
  Ticks q_lead = 0;        // how long before the end of a slice q has left
  Ticks q_transfer = 0;    // from q's leaving to attention's starting
  Ticks kv_transfer = 0;   // from the slice's end to k and v being there
  Ticks attention = 0;     // over the tokens that were there before
  Ticks combine = 0;       // adding the new token
  Ticks out_transfer = 0;  // from attention's end to the next slice
  Ticks migration = 0;     // context from replica to replica
};

// One stretch of work of one worker, for timelines and for checking schedules.
struct Stretch {
  std::int32_t batch;
  std::int32_t worker;     // replica, or -1 for the attention workers
  std::int64_t iteration;  // of the batch
  std::int64_t cycle;      // of the cluster: what Rotation counts slices by
  std::int32_t slice;      // or the layer of the attention
  Ticks start;
  Ticks end;
};

// The workers of one deployment: when each becomes free, and what passes through them.
class Pipeline {
public:
  Pipeline(Rotation rotation, int layers);

  // Runs one iteration of every active batch, all in the order that Rotation defines. ready[j] is when batch
  // j may start; finished[j] is when its last slice ends.
  void run(std::span<const Load> loads, std::span<const Ticks> ready, std::span<Ticks> finished);

  // Whether iterations of one batch alone, from a moment on, take what `alone()` says, whatever was before.
  bool alone_from(Ticks moment, const Load& load) const {
    return replica_free_.size() == 1 && !rotation_.own_attention && !recording() &&
           replica_free_[0] <= moment && attention_free_ <= moment &&
           load.q_lead <= std::min(load.first_slice, load.mid_slice);
  }
  // From when a batch may start to the end of its last slice.
  Ticks alone(const Load& load) const {
    const Ticks attention = std::max(load.q_transfer - load.q_lead + load.attention, load.kv_transfer);
    return load.first_slice + (layers_ - 1) * load.mid_slice + load.last_slice +
           layers_ * (attention + load.combine + load.out_transfer);
  }
  // So many such iterations have run, the last one until a moment; attention was busy so long in each layer.
  void skip(int batch, std::int64_t iterations, const Load& load, Ticks attention, Ticks until);

  // Keep every stretch of work that begins in [from, to).
  void record(Ticks from, Ticks to);
  const std::vector<Stretch>& recorded() const { return recorded_; }

  std::span<const Ticks> replica_busy() const { return replica_busy_; }
  Ticks attention_busy() const { return attention_busy_; }

private:
  // An active batch in run_on_one_replica().
  struct BatchClock {
    std::size_t batch;
    Ticks ready;
    Ticks before;  // `ready` a round ago
    const Load* load;
    Ticks q_delay;
  };

  void run_separately(std::span<const Load> loads);
  void run_in_rounds(std::span<const Load> loads);
  void run_on_one_replica(std::span<const Load> loads);
  void round(std::span<const Load> loads, int slice);
  void model(int batch, const Load& load, int slice);
  void attend(int batch, const Load& load, int layer);
  void count_work(int batch, const Load& load);
  void skip_repeating_rounds(std::span<const Load> loads, int& slice);
  bool recording() const { return record_to_ > record_from_; }
  void keep(int batch, int worker, int slice, Ticks start, Ticks end);

  Rotation rotation_;
  int layers_;
  std::int64_t cycle_ = 0;
  std::vector<std::int64_t> iterations_;  // that each batch has run

  std::vector<Ticks> replica_free_;
  Ticks attention_free_ = 0;
  std::vector<Ticks> ready_;      // of each batch: its input is there
  std::vector<Ticks> slice_end_;  // of each batch: its latest slice ended

  std::vector<Ticks> replica_busy_;
  Ticks attention_busy_ = 0;

  Ticks record_from_ = 0;
  Ticks record_to_ = 0;
  std::vector<Stretch> recorded_;

  // To see whether rounds repeat: the clocks that move, and where they stood a round ago.
  std::vector<Ticks*> clocks_;
  std::vector<Ticks> before_;
  std::vector<BatchClock> batch_clocks_;
};

}  // namespace lamina::sim
