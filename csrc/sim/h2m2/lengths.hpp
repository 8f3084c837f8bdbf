#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/h2m2/board.hpp"

namespace lamina::h2m2 {

// How long the requests are that are here, in sum: what an iteration's times depend on. All of them grow
// together, so that each is only touched when it comes and when it goes.
class Lengths {
public:
  using Request = std::uint32_t;

  // A matrix-vector unit takes mv_rows KV tokens at once.
  explicit Lengths(int mv_rows) : mv_rows_(mv_rows), by_phase_(static_cast<std::size_t>(mv_rows)) {}

  void join(Request request, std::int64_t tokens) {
    if (request >= born_.size()) born_.resize(std::size_t{request} + 1);
    born_[request] = tokens - age_;
    ++by_phase_[phase(born_[request])];
    count(tokens, 1);
  }

  void leave(Request request) {
    --by_phase_[phase(born_[request])];
    count(born_[request] + age_, -1);
  }

  // By one token each; those that have filled all rows of a unit begin another.
  void grow() {
    moment_.kv_tokens += moment_.batch;
    moment_.kv_rows += by_phase_[phase(-age_)];
    ++age_;
  }

  const Moment& moment() const { return moment_; }

private:
  std::size_t phase(std::int64_t tokens) const {
    return static_cast<std::size_t>((tokens % mv_rows_ + mv_rows_) % mv_rows_);
  }

  void count(std::int64_t tokens, std::int64_t sign) {
    moment_.batch += sign;
    moment_.kv_tokens += sign * tokens;
    moment_.kv_rows += sign * ((tokens + mv_rows_ - 1) / mv_rows_);
  }

  std::int64_t mv_rows_;
  std::int64_t age_ = 0;                // how often all have grown
  std::vector<std::int64_t> born_;      // of each request: its tokens, had it always been here
  std::vector<std::int64_t> by_phase_;  // requests by born_ modulo mv_rows_
  Moment moment_;
};

}  // namespace lamina::h2m2
