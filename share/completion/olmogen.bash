# bash: options of olmogen, and of any program named trainer; both are asked for what they take.
_olmogen() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} me=${COMP_WORDS[0]} words option
	COMPREPLY=()
	# "--target=cuda:h200" arrives as five words: it is cut at = and :
	case $cur$prev in
	=*) option=$prev cur= ;;
	:*) option=${COMP_WORDS[COMP_CWORD - 3]} prev=: cur= ;;
	*=) option=${COMP_WORDS[COMP_CWORD - 2]} ;;
	*:) option=${COMP_WORDS[COMP_CWORD - 4]} ;;
	esac
	case $option in
	--target) words=$("$me" --explain=trainer.target 2>/dev/null | grep -oE '"?(cpu|cuda:[a-z0-9_-]+)"?' | tr -d '"' | sort -u)
		# the word that is completed begins behind the colon
		if [ "$prev" = : ]; then words=$(echo "$words" | sed -n 's/^cuda://p'); fi ;;
	--explain) words=$("$me" --explain 2>/dev/null | grep -oE '^[a-z_]+' | sort -u) ;;
	--dump) words="load check graph shard fuse plan emit" ;;
	--plan) words=html ;;
	--from-hf) COMPREPLY=($(compgen -d -- "$cur")); return ;;
	*)
		case $prev in
		-o) COMPREPLY=($(compgen -d -- "$cur")); return ;;
		-D | -j) return ;;
		esac
		case $cur in
		-*) words=$("$me" --help 2>/dev/null | grep -oE '^  -(-[a-z-]+|[a-zA-Z])|, --[a-z]+' | tr -d ' ,' | sort -u) ;;
		*) COMPREPLY=($(compgen -f -X '!*.lua' -- "$cur") $(compgen -d -- "$cur")); return ;;
		esac
		;;
	esac
	COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
_olmogen_trainer() {
	local cur=${COMP_WORDS[COMP_CWORD]} me=${COMP_WORDS[0]} words
	COMPREPLY=()
	[ "$cur" = = ] && return
	if [ "$COMP_CWORD" = 1 ]; then
		words="$("$me" --help 2>/dev/null | sed -nE 's/^(usage:| +) trainer ([a-z]+) .*/\2/p') --help --version"
	elif [ "${cur#-}" != "$cur" ]; then
		words="$(echo --help; "$me" "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE '(^| |\[)--[a-z-]+' | tr -d ' [' | sort -u)"
	else
		case ${COMP_WORDS[1]} in
		train | eval | data)
			if [ "$COMP_CWORD" -gt 2 ]; then
				words=$("$me" info --keys 2>/dev/null | sed -nE 's/^  ([a-z_]+(\.[a-z_]+)*) .*/\1=/p')
				compopt -o nospace 2>/dev/null
			fi ;;
		bench) words="steps= --trace= --html=" ; compopt -o nospace 2>/dev/null ;;
		esac
	fi
	COMPREPLY=($(compgen -W "$words" -- "$cur"))
	[ -n "$words" ] || COMPREPLY=($(compgen -f -- "$cur"))
}
complete -F _olmogen olmogen
complete -F _olmogen_trainer -o filenames trainer
