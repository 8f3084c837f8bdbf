#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
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
      heap_.push_back(entry);
      std::ranges::push_heap(heap_, std::greater<>{});
    }
  }

  const Entry& front() const { return in_run() ? run_[head_] : heap_.front(); }

  void pop() {
    if (in_run()) {
      ++head_;
      // Forget what was served, seldom enough to cost nothing.
      if (head_ > 4096 && head_ * 2 > run_.size()) {
        run_.erase(run_.begin(), run_.begin() + static_cast<std::ptrdiff_t>(head_));
        head_ = 0;
      }
    } else {
      std::ranges::pop_heap(heap_, std::greater<>{});
      heap_.pop_back();
    }
  }

  // Takes a request out of the middle, which looks at all of them: for cancelled requests, not for a hot
  // path.
  void erase(Index index) {
    const auto it = [&](const Entry& entry) { return entry.second == index; };
    run_.erase(std::remove_if(run_.begin() + static_cast<std::ptrdiff_t>(head_), run_.end(), it), run_.end());
    if (std::erase_if(heap_, it) > 0) std::ranges::make_heap(heap_, std::greater<>{});
  }

private:
  bool in_run() const { return head_ < run_.size() && (heap_.empty() || run_[head_] < heap_.front()); }

  std::vector<Entry> run_;
  std::size_t head_ = 0;
  std::vector<Entry> heap_;
};

}  // namespace lamina
