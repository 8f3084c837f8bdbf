#include "sim/pooled.hpp"

#include <algorithm>

namespace lamina::sim {

Pooled::Pooled(std::vector<std::unique_ptr<Engine>> engines, std::unique_ptr<Decoding> decoding,
               const Workload& workload, RequestRows& requests, bool pulled)
    : engines_(std::move(engines)),
      decoding_(std::move(decoding)),
      workload_(workload),
      requests_(requests),
      pulled_(pulled),
      router_(Routing::kLeastRequests, std::vector<Router::Instance>(engines_.size(), {1, 1}), false) {}

// A request goes to the engine with the fewest, and is rejected where its KV would never fit.
void Pooled::deliver(Index row, Ticks at) {
  if (!decoding_->fits(row)) {
    gone_.push_back(row);
    return;
  }
  const int engine = router_.route({});
  const Index request = engines_[static_cast<std::size_t>(engine)]->deliver(row, at, 1);
  places_[row] = {engine, request};
}

// Of what is due at the same moment prompts come first, and of them the first engine's.
Pooled::Due Pooled::due() const {
  Due first{kNever, 0};
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    if (const Ticks at = engines_[i]->next(); at < first.at) first = {at, static_cast<int>(i)};
  }
  const Ticks decoding = decoding_->next();
  return decoding < first.at ? Due{decoding, kDecoding} : first;
}

bool Pooled::advance(Ticks before, std::int64_t most) {
  for (; most > 0; --most) {
    const Due next = due();
    if (next.at >= before) return true;
    serve(next);
  }
  return false;
}

void Pooled::serve(Due due) {
  if (due.engine == kDecoding) {
    decoding_->step();
    decoded();
  } else {
    engines_[static_cast<std::size_t>(due.engine)]->step();
    computed(due.engine);
  }
}

void Pooled::computed(int engine) {
  Engine& its = *engines_[static_cast<std::size_t>(engine)];
  for (const Index row : its.take_gone()) {
    places_.erase(row);
    router_.left(engine, {});
    gone_.push_back(row);
  }
  for (const auto& [row, from, to] : its.take_computed()) {
    router_.left(engine, {});
    const std::int32_t output = workload_.requests.output[row];
    if (!pulled_) {
      decoding_->deliver(row, to, output, to);
    } else if (output > 1) {
      // Its first layers can be read while its last ones are computed.
      decoding_->deliver(row, from, output - 1, to);
    } else {
      requests_.finished[row] = to;
      its.release(places_.at(row).request, to);
      gone(row);
    }
  }
}

void Pooled::decoded() {
  for (const Index row : decoding_->take_received()) {
    const auto found = places_.find(row);
    engines_[static_cast<std::size_t>(found->second.engine)]->release(found->second.request,
                                                                      decoding_->now());
    places_.erase(found);
  }
  for (const Index row : decoding_->take_gone()) gone_.push_back(row);
}

void Pooled::gone(Index row) {
  places_.erase(row);
  gone_.push_back(row);
}

Result Pooled::take() {
  Result result = decoding_->take();
  PoolRows& pool = result.pool.emplace();
  pool.engines = static_cast<std::int32_t>(engines_.size());
  // Who waits for a prompt waits first of all.
  result.queue_empty_at = kNever;
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    Result of = engines_[i]->take();
    IterationRows& rows = of.iterations;
    for (std::size_t row = 0; row < rows.rows; ++row) {
      pool.engine.push_back(static_cast<std::int32_t>(i));
      pool.prompts.push_back(rows.joined[row]);
      pool.made.push_back(pulled_ ? rows.joined[row] : 0);
      pool.prompt_tokens.push_back((*of.prompt_tokens)[row]);
      pool.start.push_back(rows.start[row]);
      pool.duration.push_back(rows.duration[row]);
      pool.busy.push_back(rows.model[row] + rows.attention[row]);
    }
    result.queue_empty_at = std::min(result.queue_empty_at, of.queue_empty_at);
    result.end = std::max(result.end, of.end);
  }
  return result;
}

void Pooled::check_integrity() const {
  for (const auto& engine : engines_) engine->check_integrity();
  decoding_->check_integrity();
}

}  // namespace lamina::sim
