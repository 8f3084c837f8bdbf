#pragma once

#include <cstdint>
#include <vector>

#include "sim/arrivals.hpp"
#include "sim/simulator.hpp"

namespace lamina::sim {

// A deployment in the middle of a replay, which goes on boundary by boundary.
class Site {
public:
  using Index = Arrivals::Index;

  Site() = default;
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;
  virtual ~Site() = default;

  // A request of the workload comes, no earlier than the last boundary that was served.
  virtual void deliver(Index row, Ticks at) = 0;
  // The moment of the next boundary; kNever while there is nothing to do.
  virtual Ticks next() const = 0;
  // The boundaries before a moment, of which no more than so many are served at a time; whether that was all.
  virtual bool advance(Ticks before, std::int64_t most) = 0;
  // No request ends here before this moment, if none comes: `next()`, or later.
  virtual Ticks next_end() const { return next(); }
  // What came of it, without the requests.
  virtual Result take() = 0;
  virtual void check_integrity() const = 0;

  // Requests that ended or were rejected; the caller that handled them clears it.
  std::vector<Index>& departed() { return departed_; }

protected:
  std::vector<Index> departed_;
};

}  // namespace lamina::sim
