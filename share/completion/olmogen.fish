# fish: options of olmogen, and of any program named trainer; both are asked for what they take.
complete -c olmogen -s o -x -a '(__fish_complete_directories)' -d 'where to put the tree'
complete -c olmogen -s D -x -d 'sets arg.NAME'
complete -c olmogen -s j -x -d 'jobs of the build'
complete -c olmogen -s v -d 'says what is written and run'
complete -c olmogen -l target -x -a '(olmogen --explain=trainer.target | string match -ra "cpu|cuda:[a-z0-9_-]+" | sort -u)' -d 'overrides trainer.target'
complete -c olmogen -l plan -f -a html -d 'prints the plan'
complete -c olmogen -l search -x -d 'the fastest layouts of so many ranks'
complete -c olmogen -l emit-only -d 'writes the sources, builds nothing'
complete -c olmogen -l check -d 'compares the tree on disk'
complete -c olmogen -l dump -x -a 'load check graph shard fuse plan emit' -d 'what a stage gives'
complete -c olmogen -l explain -f -a '(olmogen --explain | string match -r "^[a-z_]+" | sort -u)' -d 'describes the language'
complete -c olmogen -l from-hf -x -a '(__fish_complete_directories)' -d 'describes a Hugging Face model'
complete -c olmogen -l init -d 'asks, and prints a description'
complete -c olmogen -l bundle -d 'puts NCCL beside the trainer'
complete -c olmogen -l static -d 'links NCCL into the trainer'
complete -c olmogen -l no-fuse -d 'a kernel for each op'
complete -c olmogen -l help -d 'prints the usage'
complete -c olmogen -l version
function __olmogen_trainer
	set -l words (commandline -opc)
	if test (count $words) = 1
		$words[1] --help | string replace -rf '^(usage:| +) trainer ([a-z]+) .*' '$2'
	else if contains -- $words[2] train eval data; and test (count $words) -gt 2
		$words[1] info --keys | string replace -rf '^  ([a-z_]+(\.[a-z_]+)*) .*' '$1='
	end
	test (count $words) -gt 1; and $words[1] $words[2] --help | string match -ra -- '(?<=^| |\[)--[a-z-]+' | sort -u
end
complete -c trainer -a '(__olmogen_trainer)'
