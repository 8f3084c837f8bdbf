#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace lamina {

// The waiting requests, smallest (key, index) first. Keys that come in rising order, as under FIFO, cost no
// more than an append; the others go through a heap.
class RequestQueue {
public:
  using Index = std::uint32_t;
  using Entry = std::pair<std::int64_t, Index>;

  bool empty() const { return head_ == run_.size() && heap_.empty(); }
  std::size_t size() const { return run_.size() - head_ + heap_.size(); }

  void push(std::int64_t key, Index index) {
    const Entry entry{key, index};
    if (head_ == run_.size()) {
      run_.clear();
      head_ = 0;
    }
    if (run_.empty() || run_.back() < entry) {
      run_.push_back(entry);
    } else {
      heap_.push(entry);
    }
  }

  const Entry& front() const { return in_run() ? run_[head_] : heap_.top(); }

  void pop() {
    if (in_run()) {
      ++head_;
      // Forget what was served, seldom enough to cost nothing.
      if (head_ > 4096 && head_ * 2 > run_.size()) {
        run_.erase(run_.begin(), run_.begin() + static_cast<std::ptrdiff_t>(head_));
        head_ = 0;
      }
    } else {
      heap_.pop();
    }
  }

private:
  bool in_run() const { return head_ < run_.size() && (heap_.empty() || run_[head_] < heap_.top()); }

  std::vector<Entry> run_;
  std::size_t head_ = 0;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap_;
};

}  // namespace lamina
