# frozen_string_literal: true

# scripts/packages/ruby builds it, and sets the version.
Gem::Specification.new do |gem|
  gem.name = "duralite"
  gem.version = ENV.fetch("DURALITE_VERSION")
  gem.platform = Gem::Platform.local
  gem.summary = "Durable and fast commits for SQLite, with the sqlite3 gem"
  gem.description = "A VFS for stock SQLite that keeps its write-ahead log in preallocated blocks: commits that meet share one flush."
  gem.authors = ["Duralite maintainers"]
  gem.license = "Apache-2.0"
  gem.homepage = "https://github.com/duralite/duralite"
  gem.files = Dir["lib/**/*"]
  gem.required_ruby_version = ">= 2.7"
  gem.add_dependency "fiddle", "~> 1.0"
  gem.add_dependency "sqlite3", ">= 1.4", "< 3"
end
