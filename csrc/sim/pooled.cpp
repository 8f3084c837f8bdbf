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
      router_(Routing::kLeastRequests, std::vector<Router::Instance>(engines_.size(), {1, 1}), false),
      prompts_(static_cast<int>(engines_.size())) {}

// A request goes to the engine with the fewest, and is rejected where its KV would never fit.
void Pooled::deliver(Index row, Ticks at) {
  if (!decoding_->fits(row)) {
    departed_.push_back(row);
    return;
  }
  const int engine = router_.route({});
  Engine& its = *engines_[static_cast<std::size_t>(engine)];
  its.deliver(row, at, 1);
  prompts_.set(engine, its.next());
}

// Of what is due at the same moment prompts come first, and of them the first engine's.
bool Pooled::advance(Ticks before, std::int64_t most) {
  for (; most > 0; --most) {
    const Ticks prompts = prompts_.at();
    if (!decoding_->advance(std::min(before, prompts), 1)) {
      decoded();
    } else if (prompts < before) {
      step(prompts_.index());
    } else {
      return true;
    }
  }
  return false;
}

void Pooled::step(int engine) {
  Engine& its = *engines_[static_cast<std::size_t>(engine)];
  its.step();
  for (const Index row : its.departed()) {
    router_.left(engine, {});
    departed_.push_back(row);
  }
  its.departed().clear();
  for (const auto& [request, from, to] : its.computed()) {
    router_.left(engine, {});
    const Index row = its.row_of(request);
    const std::int32_t output = workload_.requests.output[row];
    if (pulled_ && output == 1) {
      requests_.finished[row] = to + its.out();
      its.release(request, to);
      departed_.push_back(row);
      continue;
    }
    places_.push_back({engine, request});
    if (pulled_) {
      // Its first layers can be read while its last ones are computed.
      decoding_->deliver(row, from, output - 1, to);
    } else {
      decoding_->deliver(row, to, output, to);
    }
  }
  its.computed().clear();
  prompts_.set(engine, its.next());
}

void Pooled::decoded() {
  for (const Index received : decoding_->received()) {
    const auto [engine, request] = places_[received];
    Engine& its = *engines_[static_cast<std::size_t>(engine)];
    its.release(request, decoding_->now());
    prompts_.set(engine, its.next());
  }
  decoding_->received().clear();
  departed_.insert(departed_.end(), decoding_->departed().begin(), decoding_->departed().end());
  decoding_->departed().clear();
}

Result Pooled::take() {
  Result result = decoding_->take();
  PoolRows& pool = result.pool.emplace();
  pool.engines = static_cast<std::int32_t>(engines_.size());
  // It is that of the engines, where requests queue for their prompts.
  result.queue_empty_at = kNever;
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    Result of = engines_[i]->take();
    IterationRows& rows = of.iterations;
    const auto reserve = [&](auto&... columns) { (columns.reserve(columns.size() + rows.rows), ...); };
    reserve(pool.engine, pool.prompts, pool.made, pool.prompt_tokens, pool.start, pool.duration, pool.busy);
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
