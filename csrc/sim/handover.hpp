#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <vector>

#include "sim/arrivals.hpp"

namespace lamina::sim {

// What KV takes to be handed over. Of layers that look at a window, no more than that is there.
struct KvLink {
  Ticks latency = 0;
  double per_token = 0;
  std::int64_t window = 0;
  double windowed_per_token = 0;
};

// KV on its way from the devices that computed prompts, over one link: a request's after another's, in the
// order in which they got memory. Attention workers that pull do so in their free time.
class Handover {
public:
  using Index = Arrivals::Index;

  Handover(const KvLink& link, int layers, bool pulled) : link_(link), layers_(layers), pulled_(pulled) {}

  // From now on a request's tokens may come; those of the last layer only when its prompt is `whole`.
  void begin(Index request, std::int64_t tokens, Ticks now, Ticks whole) {
    const double whole_layers = static_cast<double>(tokens) * link_.per_token;
    const double windows = static_cast<double>(std::min(tokens, link_.window)) * link_.windowed_per_token;
    const Ticks takes = link_.latency + static_cast<Ticks>(whole_layers + windows + 0.5);
    if (waiting_.empty()) since_ = std::max(since_, now);
    waiting_.push_back({request, takes, pulled_ ? whole + takes / layers_ : whole});
  }

  // Those whose KV has come by now, the attention workers having been busy for this share of the time since
  // this was asked before.
  const std::vector<Index>& received(Ticks now, double busy_share) {
    received_.clear();
    const double share = pulled_ ? 1 - std::min(1.0, busy_share) : 1.0;
    while (!waiting_.empty() && ends(share) <= now) {
      since_ = ends(share);
      landed_.push_back(waiting_.front());
      waiting_.pop_front();
    }
    if (!waiting_.empty() && since_ < now) {
      waiting_.front().takes -= static_cast<Ticks>(static_cast<double>(now - since_) * share);
      since_ = now;
    }
    std::erase_if(landed_, [&](const Moving& each) {
      if (each.not_before > now) return false;
      received_.push_back(each.request);
      return true;
    });
    return received_;
  }

  bool idle() const { return waiting_.empty() && landed_.empty(); }
  // When the first of them has come if nothing runs; kNever without any.
  Ticks next() const {
    Ticks soonest = waiting_.empty() ? kNever : std::max(ends(1), waiting_.front().not_before);
    for (const Moving& each : landed_) soonest = std::min(soonest, each.not_before);
    return soonest;
  }

private:
  struct Moving {
    Index request;
    Ticks takes;       // of the link's time, from `since_` on for the first of them
    Ticks not_before;  // its prompt is not whole
  };

  // When the first that waits has passed the link.
  Ticks ends(double share) const {
    if (share <= 0) return kNever;
    return since_ + static_cast<Ticks>(std::ceil(static_cast<double>(waiting_.front().takes) / share));
  }

  KvLink link_;
  int layers_;
  bool pulled_;
  Ticks since_ = 0;
  std::deque<Moving> waiting_;
  std::vector<Moving> landed_;
  std::vector<Index> received_;
};

}  // namespace lamina::sim
